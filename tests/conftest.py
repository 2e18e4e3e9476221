"""What every test may ask for: the event loop, and one real homeserver for the whole run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bridge.demo.homeserver import Homeserver

# A machine may be busy: how long an example takes says nothing about the code.
settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """A Synapse without rate limits, started when the first test asks. Whoever stops it starts it again."""
    with Homeserver(Path(tmp_path_factory.mktemp("synapse"))) as homeserver:
        yield homeserver
