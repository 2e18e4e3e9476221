from typing import Any

import pytest

from bridge.core.errors import ProofNeeded
from bridge.matrix import answers

FLOWS = [{"stages": ["m.oauth"]}, {"stages": ["m.login.password"]}]


def needed(params: object) -> ProofNeeded:
    body: dict[str, Any] = {"flows": FLOWS, "session": "s1", "params": params}
    with pytest.raises(ProofNeeded) as caught:
        answers.judge(401, {}, body)
    return caught.value


def test_what_a_homeserver_wants_as_proof_is_named_with_the_page_for_a_person() -> None:
    wanted = needed({"m.oauth": {"url": "https://account.hs/?action=reset#x"}})
    assert ("s1", (("m.oauth",), ("m.login.password",))) == (wanted.session, wanted.flows)
    assert "https://account.hs/?action=reset#x" == wanted.page


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {"m.oauth": []},
        {"m.oauth": {"url": 7}},
        {"m.oauth": {"url": "http://account.hs/"}},
        {"m.oauth": {"url": "https://"}},
        {"m.oauth": {"url": "https://account.hs/ and more"}},
        {"m.oauth": {"url": "https://account.hs/\x1b[2J"}},
        {"m.oauth": {"url": "https://account.hs/\n"}},
        {"m.oauth": {"url": "https://аccount.hs/"}},  # noqa: RUF001 - a Cyrillic letter
        {"m.oauth": {"url": "https://" + "a" * 2001}},
    ],
)
def test_a_page_that_is_none_or_could_steer_a_terminal_is_not_shown(params: object) -> None:
    assert None is needed(params).page


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (rb'{"a":"\ud800","\uDFFF":["x\udc00y"]}', {"a": "?", "?": ["x?y"]}),
        (b'"\xed\xa0\x80"', "?"),
        (rb'"\ud83d\ude00 \\ud800"', "\U0001f600 \\ud800"),
        (rb'[1.5,123456789012345678901,"\ud83d\ude00"]', [1.5, 123456789012345678901, "\U0001f600"]),
    ],
)
def test_half_a_surrogate_pair_comes_no_further(raw: bytes, found: object) -> None:
    assert found == answers.from_wire(raw)
