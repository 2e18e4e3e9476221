import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.diff import list_changed_lines, write_diff

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "-x", "+y", "d e"]), max_size=40).map("\n".join)


def _apply(old: str, diff: str) -> str:
    """Patch `old` by the hunks, checking every line of them against it."""
    mark = "\\ No newline at end of file"
    lines = old.split("\n")
    result: list[str] = []
    at, ends = 0, True
    rows = diff.split("\n") if diff else []
    for index, row in enumerate(rows):
        if row.startswith("@@"):
            first, _, length = row.split(" ")[1][1:].partition(",")
            start = int(first) - (0 if length == "0" else 1)
            result += lines[at:start]
            at = start
        elif row.startswith("+"):
            result.append(row[1:])
            ends = rows[index + 1 : index + 2] != [mark]
        elif row != mark:
            assert row[1:] == lines[at]
            result += [lines[at]] if row.startswith(" ") else []
            at += 1
    rest = lines[at:]
    return "\n".join([*result, *rest] if rest or not ends else result)


@given(LINES, LINES)
def test_the_new_text_follows_from_the_old_one_and_the_diff(old: str, new: str) -> None:
    assert new.rstrip("\n") == _apply(old, write_diff(old, new)).rstrip("\n")


@pytest.mark.parametrize(
    ("old", "new", "diff"),
    [
        ("", "", ""),
        ("a\n", "a\n", ""),
        ("x = 1", "x = 2", "@@ -1 +1 @@\n-x = 1\n+x = 2"),
        ("", "hello\nworld\n", "@@ -0,0 +1,2 @@\n+hello\n+world"),
        ("hello\n", "", "@@ -1 +0,0 @@\n-hello"),
        ("a\n", "a", "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file"),
        ("a\x0bb\u2028c\n", "a\x0bb\u2028d\n", "@@ -1 +1 @@\n-a\x0bb\u2028c\n+a\x0bb\u2028d"),
        (
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            "1\n2\n3\n4\nfive\n6\n7\n8\n9\n",
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8",
        ),
    ],
)
def test_a_diff_reads_as_people_know_it(old: str, new: str, diff: str) -> None:
    assert diff == write_diff(old, new)


def test_changes_far_apart_stand_in_hunks_of_their_own() -> None:
    old = [f"{n}" for n in range(40)]
    new = ["zero", *old[1:20], "twenty", *old[21:]]
    assert write_diff("\n".join(old), "\n".join(new)).count("@@ -") == 2


@pytest.mark.parametrize(("apart", "hunks"), [(6, 1), (7, 2)])
def test_changes_whose_context_meets_share_a_hunk(apart: int, hunks: int) -> None:
    between = [f"{n}" for n in range(apart)]
    diff = write_diff("\n".join(["a", *between, "b"]), "\n".join(["A", *between, "B"]))
    assert hunks == diff.count("@@ -")


def test_lines_that_occur_once_tie_a_moved_text_together() -> None:
    diff = write_diff("a\nb\nc\nd\ne\n", "d\na\nb\nc\ne\n")
    assert list_changed_lines(diff) == ["+d", "-d"]


def test_a_piece_too_large_to_compare_is_removed_and_added_whole() -> None:
    diff = write_diff("a\nb\n" * 2000, "b\na\na\n" * 2000)
    assert {"-a", "-b", "+a", "+b"} == set(list_changed_lines(diff))


@pytest.mark.parametrize(("diff", "lines"), [("", []), ("--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n z\n", ["-x", "+y"])])
def test_the_changed_lines_of_a_diff_leave_out_its_head(diff: str, lines: list[str]) -> None:
    assert lines == list_changed_lines(diff)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb\n" * 250_000, "b\na\n" * 250_000),
        ("a" * 1_000_000, "b" * 1_000_000),
        ("".join(f"{n}\n" for n in range(150_000)), "".join(f"{n}\n" for n in reversed(range(150_000)))),
        ("".join(f"u{n}\na\nb\n" for n in range(100_000)), "".join(f"u{n}\nb\na\n" for n in range(100_000))),
    ],
)
def test_a_megabyte_on_each_side_is_compared_in_bounded_time(old: str, new: str) -> None:
    start = time.process_time()
    assert write_diff(old, new)
    assert time.process_time() - start < 20  # about 1; difflib alone takes hours
