import pytest

from bridge.core.model import Meaning, Option, PolicyName, Scope, Subject, Unsatisfied
from bridge.core.policy import decide, expire

KINDS = {
    "allow_once": (Meaning.APPROVE, Scope.ONCE),
    "allow_always": (Meaning.APPROVE, Scope.ALWAYS),
    "reject_once": (Meaning.REJECT, Scope.ONCE),
    "reject_always": (Meaning.REJECT, Scope.ALWAYS),
}
SHELL = Subject(kind="shell", members={"command": "bun test"})
UNKNOWN = Subject(kind="quantum", members={}, known=False)
ASKED = None


def offer(*offered: str) -> tuple[Option, ...]:
    """Options written as `kind id`; the name of each says the opposite of what it means, and must not matter."""
    options: list[Option] = []
    for kind, option_id in (item.split() for item in offered):
        meaning, scope = KINDS.get(kind, (Meaning.CHOOSE, None))
        name = "Reject" if meaning is Meaning.APPROVE else "Allow"
        options.append(
            Option(
                option_id=option_id,
                name=name,
                kind=kind,
                label=name,
                line=name,
                card_id=option_id,
                meaning=meaning,
                scope=scope,
            )
        )
    return tuple(options)


def outcome(policy: PolicyName, *offered: str, subjects: tuple[Subject, ...] = (SHELL,)) -> str | Unsatisfied | None:
    decision = decide(policy, offer(*offered), subjects)
    return decision.option_id if isinstance(decision, Option) else decision


@pytest.mark.parametrize("subjects", [(SHELL,), (UNKNOWN,), ()])
def test_ask_never_decides(subjects: tuple[Subject, ...]) -> None:
    assert outcome(PolicyName.ASK, "allow_once ao", "reject_once ro", subjects=subjects) is ASKED


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (("reject_always ra", "reject_once ro"), "ro"),
        (("allow_once ao", "reject_always ra"), "ra"),
        (("reject_once r1", "reject_once r2"), "r1"),
        (("allow_once ao", "allow_always aa"), Unsatisfied()),
        (("ask_later x", "allow_once ao"), Unsatisfied()),
        ((), Unsatisfied()),
    ],
)
def test_reject_all_prefers_once_and_never_asks(offered: tuple[str, ...], expected: str | Unsatisfied) -> None:
    assert expected == outcome(PolicyName.REJECT_ALL, *offered)


def test_reject_all_may_refuse_what_is_unknown() -> None:
    assert outcome(PolicyName.REJECT_ALL, "allow_once ao", "reject_once ro", subjects=(UNKNOWN,)) == "ro"
    assert outcome(PolicyName.REJECT_ALL, "reject_once ro", subjects=()) == "ro"


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (("allow_always aa", "allow_once ao"), "ao"),
        (("reject_once ro", "allow_always aa"), "aa"),
        (("allow_once a1", "allow_once a2"), "a1"),
        (("ask_later x", "allow_always aa"), "aa"),
        (("ask_later x", "reject_once ro"), ASKED),
        (("ask_later x",), ASKED),
        (("reject_once ro", "reject_always ra"), Unsatisfied()),
        ((), Unsatisfied()),
    ],
)
def test_allow_all_prefers_once_and_asks_only_what_it_cannot_tell(
    offered: tuple[str, ...], expected: str | Unsatisfied | None
) -> None:
    assert expected == outcome(PolicyName.ALLOW_ALL, *offered)


@pytest.mark.parametrize("subjects", [(UNKNOWN,), (SHELL, UNKNOWN), ()])
@pytest.mark.parametrize("offered", [("allow_once ao", "reject_once ro"), ("reject_once ro",)])
def test_allow_all_asks_about_every_unknown_subject(offered: tuple[str, ...], subjects: tuple[Subject, ...]) -> None:
    assert outcome(PolicyName.ALLOW_ALL, *offered, subjects=subjects) is ASKED


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (("allow_once ao", "allow_always aa", "reject_once ro", "reject_always ra"), "ro"),
        (("reject_once r1", "reject_once r2"), "r1"),
        (("allow_once ao", "reject_always ra"), None),
        (("allow_once ao", "allow_always aa"), None),
        (("ask_later x",), None),
        ((), None),
    ],
)
def test_expiry_takes_the_first_reject_once_or_nothing(offered: tuple[str, ...], expected: str | None) -> None:
    option = expire(offer(*offered))
    assert expected == (option.option_id if option else None)
