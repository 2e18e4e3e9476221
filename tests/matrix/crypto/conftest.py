"""Two machines that everything here is tried between."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.matrix.crypto.machine import Machine
from tests.matrix.crypto.world import ALICE, BOT, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def bot(world: World) -> Machine:
    return world.machine(BOT, "BOT")


@pytest.fixture
def alice(world: World) -> Machine:
    return world.machine(ALICE, "PHONE")
