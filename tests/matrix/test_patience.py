from hypothesis import given
from hypothesis import strategies as st

from bridge.matrix.patience import Patience, worth_a_line


@given(st.integers(min_value=1, max_value=10**6))
def test_a_wait_is_at_least_half_of_the_doubled_one_and_never_above_the_cap(failures: int) -> None:
    wait_s = Patience(first_s=0.5, most_s=8.0).wait_s(failures)
    assert min(8.0, 0.5 * 2 ** min(failures - 1, 16)) / 2 <= wait_s <= 8.0


def test_an_outage_is_logged_ever_more_rarely() -> None:
    assert [failures for failures in range(1, 32) if worth_a_line(failures)] == [1, 2, 4, 8, 16]
