"""When a history row says it was written; the fields of each type are in `tests/contracts/test_ledger.py`."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.model import Millis
from bridge.store.records import stamp


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_794_047_398_114, "2026-11-07T10:29:58.114Z"),
        (1_772_946_000_001, "2026-03-08T05:00:00.001Z"),  # clocks in America/St_Johns jump half an hour later
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_is_utc_with_milliseconds_and_zone(at: int, expected: str) -> None:
    assert expected == stamp(Millis(at))


@given(st.integers(0, 253_402_300_799_999))
def test_no_millisecond_is_lost(at: int) -> None:
    read = datetime.strptime(stamp(Millis(at)), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    assert at == int(read.timestamp()) * 1000 + read.microsecond // 1000
