"""What the tests with real clients may ask for."""

import pytest

from tests.clients import javascript
from tests.clients.javascript import Javascript, Missing


@pytest.fixture(scope="session")
def js() -> Javascript:
    """Node with matrix-js-sdk; a test that asks for it is skipped on a machine without npm."""
    try:
        return javascript.install()
    except Missing as missing:
        pytest.skip(f"{missing}.")
