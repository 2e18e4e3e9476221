"""The failure cases, played on the whole bridge; every sentence of theirs has an assertion, and nothing is left out silently.

Cases of parts that are not built yet are skipped by name with the part that they wait for (`tables`).
"""

import anyio
import pytest

from tests.cases import claims_deciding, claims_sealed, claims_showing, claims_working, tables
from tests.cases.beginning import read_setup
from tests.cases.claims import CLAIMS, find_claim
from tests.cases.reading import Json, Run, expand, read_cases
from tests.cases.stage import staging
from tests.cases.steps import Player
from tests.cases.verdict import judge

RUN_LIMIT_S = 120.0  # the longest has 200 rounds; nothing in it waits for a clock
CLAIM_MODULES = (claims_deciding, claims_sealed, claims_showing, claims_working)  # they register what they assert

CASES = read_cases()


def why_waiting(case: Json | Run) -> str | None:
    """The part that a case, or a run of it, waits for."""
    case_id, kind, name = (
        (case.case, case.kind, case.name) if isinstance(case, Run) else (case["id"], case["kind"], None)
    )
    return (
        tables.WAITING_KINDS.get(kind)
        or tables.WAITING_CASES.get(case_id)
        or (tables.WAITING_RUNS.get((case_id, name)) if name else None)
    )


RUNS = [run for case in CASES if case["level"] != "core" for run in expand(case)]
PLAYED = [run for run in RUNS if why_waiting(run) is None]
WAITING = {run.label: reason for run in RUNS if (reason := why_waiting(run)) is not None}


@pytest.mark.parametrize("run", PLAYED, ids=lambda run: run.label)
async def test_a_case_holds(run: Run) -> None:
    async with staging(read_setup(run)) as stage:
        with anyio.fail_after(RUN_LIMIT_S):
            await Player(run, stage).play()
    judge(run, stage)
    for sentence in run.claims:
        claim = find_claim(run, sentence)
        if claim is not None:
            claim(stage)
    errors = {entry["event"] for entry in stage.logs if entry["log_level"] in {"error", "critical"}}
    assert errors == tables.EXPECTED_ERRORS.get(run.case, frozenset())


NOT_HELD = {
    **WAITING,
    **{f"{case}: {sentence}": reason for (case, sentence), reason in tables.WAITING_CLAIMS.items()},
    **{f"{case}: {sentence}": reason for (case, sentence), reason in tables.DECIDED_DIFFERENTLY.items()},
}


@pytest.mark.parametrize("what", NOT_HELD)
def test_what_is_not_held_is_said_with_its_reason(what: str) -> None:
    pytest.skip(f"{what}: {NOT_HELD[what]}")


def test_every_sentence_has_an_assertion() -> None:
    excused = tables.WAITING_CLAIMS.keys() | tables.DECIDED_DIFFERENTLY.keys()
    silent = {
        f"{run.case} {run.name or ''}: {sentence}"
        for run in PLAYED
        for sentence in run.claims
        if find_claim(run, sentence) is None and (run.case, sentence) not in excused
    }
    assert silent == set()


def test_every_assertion_and_every_excuse_belongs_to_a_sentence() -> None:
    sentences = {(run.case, run.name, sentence) for run in PLAYED for sentence in run.claims}
    short = {(case, sentence) for case, _, sentence in sentences}
    assert CLAIMS.keys() <= sentences
    assert tables.WAITING_CLAIMS.keys() | tables.DECIDED_DIFFERENTLY.keys() <= short
    assert tables.WAITING_CASES.keys() <= {run.case for run in RUNS}
    assert tables.WAITING_RUNS.keys() <= {(run.case, run.name) for run in RUNS}
    assert tables.WAITING_KINDS.keys() <= {run.kind for run in RUNS}


def test_no_case_is_left_out() -> None:
    counted = {run.case for run in RUNS} | {case["id"] for case in CASES if case["level"] == "core"}
    assert counted == {case["id"] for case in CASES}
    assert len(CASES) == 141
