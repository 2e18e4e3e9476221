"""What is decided without a person: by an agent's policy, and at a request's expiry (design.md, rules 1 and 5).

Above it: the broker. Below it: the model. It decides by the options' kinds alone, never by a name, an id or a place in
the list, and it remembers nothing: a policy grants no more than the one request it was asked about.
"""

from collections.abc import Sequence

from bridge.core.model import Meaning, Option, PolicyName, Scope, Subject, Unsatisfied


def decide(policy: PolicyName, options: Sequence[Option], subjects: Sequence[Subject]) -> Option | Unsatisfied | None:
    """The option that the policy picks, `Unsatisfied` when it has none to pick, or None: people are asked.

    `reject_all` never asks, since nobody may be there (AO-20): the first `reject_once`, else the first `reject_always`
    (AO-02), whatever is asked for (MS-02), else `Unsatisfied` (AO-03).

    `allow_all` asks where a subject is of an unknown kind, or none is given (MS-02, MS-03). Else it picks the first
    `allow_once`, else the first `allow_always` (AO-04); options of unknown kind beside them change nothing and are never
    picked. Has it nothing to pick, it asks where an option is of unknown kind, since that one may be what the agent means
    by yes (SI-12), and is `Unsatisfied` where all of them are known to refuse (AO-04).
    """
    if policy is PolicyName.REJECT_ALL:
        return _first(options, Meaning.REJECT) or Unsatisfied()
    if policy is PolicyName.ALLOW_ALL and subjects and all(subject.known for subject in subjects):
        unknown = any(option.meaning is Meaning.CHOOSE for option in options)
        return _first(options, Meaning.APPROVE) or (None if unknown else Unsatisfied())
    return None


def expire(options: Sequence[Option]) -> Option | None:
    """What goes to the harness at expiry: the first `reject_once`; None: `cancelled` (rule 5)."""
    return next((option for option in options if _is(option, Meaning.REJECT, Scope.ONCE)), None)


def _first(options: Sequence[Option], meaning: Meaning) -> Option | None:
    """The first option of this meaning that reaches only this once, else the first that reaches further."""
    for scope in (Scope.ONCE, Scope.ALWAYS):
        for option in options:
            if _is(option, meaning, scope):
                return option
    return None


def _is(option: Option, meaning: Meaning, scope: Scope) -> bool:
    return option.meaning is meaning and option.scope is scope
