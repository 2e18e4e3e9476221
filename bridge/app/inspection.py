"""`check`: the real homeserver and the real harnesses behind the questions of `ops.doctor`.

Above it: app. Below it: ops.doctor, which asks and words; matrix.client and acp, which answer.
"""

import os
from collections.abc import Mapping

import anyio

from bridge.acp.agent import Harnesses
from bridge.app.accounts import HomeserverAccounts, address_of
from bridge.app.service import DISTRIBUTION_VERSION, make_launch, new_session_id
from bridge.config import Config, read_secrets
from bridge.core.errors import CredentialsRefused, RequestRefused
from bridge.core.events import Event, RoomState
from bridge.core.model import AgentName, RoomId, UserId
from bridge.matrix.client import Client
from bridge.ops.doctor import AgentPlan, HarnessReport, Plan, RoomReport, check
from bridge.ops.login import Account, read_device, read_saved_token
