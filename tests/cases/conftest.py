"""Assertions outside the test modules say what they compared, too."""

import pytest

for name in ("claims", "claims_deciding", "claims_sealed", "claims_showing", "claims_working", "verdict"):
    pytest.register_assert_rewrite(f"tests.cases.{name}")
