"""What is not run, not looked at or decided differently, each with its reason. The suite reports every line by name.

Above it: the test modules. Below it: nothing.
"""

WAITING_KINDS = {
    "rate-limit": "the tests of a limiting homeserver are not built yet",
    "homeserver-down": "the tests of a homeserver that is away are not built yet",
    "restart": "the tests of kills at named points are not built yet",
    "harness-exit": "the tests of agents that end are not built yet",
    "process": "the tests of signals, containers and folders are not built yet",
    "storage": "the tests of a ledger in trouble are not built yet",
}
"""Whole kinds of cases that come with a later part."""

WAITING_CASES = {
    "race-06": "the lock on the data folder is tested with the whole process",
    "replay-04": "needs a holder: an agent that outlives the bridge",
    "auth-06": "needs the config to be read again while running",
}

WAITING_RUNS = {
    ("size-01", "the whole text is delivered"): "needs attachments",
}

WAITING_CLAIMS = {
    (
        "replay-03",
        "a harness that outlived the bridge gets the answer (ending answered)",
    ): "needs a holder: an agent that outlives the bridge",
}

DECIDED_DIFFERENTLY: dict[tuple[str, str], str] = {}
"""Sentences of a case that the bridge does not keep on purpose: (case, sentence) and why."""

EXPECTED_ERRORS: dict[str, frozenset[str]] = {}
"""Log events at error level that belong to a case."""
