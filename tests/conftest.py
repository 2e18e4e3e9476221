"""What every test may ask for: the event loop, and one real homeserver for the whole run, or for each process of it."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from bridge.demo.homeserver import Homeserver
from tests.peers.untraced import untraced

# A busy machine is no fault: what has a limit of time says so in its test.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """A Synapse without rate limits, started when the first test asks. Whoever stops it starts it again."""
    homeserver = Homeserver(Path(tmp_path_factory.mktemp("synapse")))
    with untraced():
        homeserver.start()
    yield homeserver
    homeserver.stop()
