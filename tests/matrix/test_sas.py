"""Two of our own verifications against each other, and against everything that could stand between them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
import vodozemac
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.model import JsonObject, JsonValue
from bridge.matrix.crypto.emoji import EMOJI
from bridge.matrix.crypto.sas import AGREEMENT, HASH, KINDS, MAC, METHOD, STRINGS, Phase, Sas, address
from bridge.matrix.crypto.signing import to_base64, to_canonical
from bridge.matrix.crypto.steps import Code, Party, Proven, Send, Show, Step, Stopped

TRANSACTION = "$asked"


def make_key(word: str) -> str:
    return to_base64(hashlib.sha256(word.encode()).digest())


ALICE = Party(user="@alice:hs", device_id="PHONE", device_key=make_key("phone"), master_key=make_key("alice"))
BOT = Party(user="@bot:hs", device_id="BRIDGE", device_key=make_key("bridge"), master_key=make_key("bot"))


@dataclass
class Side:
    """One verification, and what it did."""

    me: Party
    sas: Sas
    sent: list[Send] = field(default_factory=list[Send])
    shown: list[Show] = field(default_factory=list[Show])
    proven: list[Proven] = field(default_factory=list[Proven])
    stopped: list[Stopped] = field(default_factory=list[Stopped])
    confirmed: bool = False

    def note(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Send():
                    self.sent.append(step)
                case Show():
                    self.shown.append(step)
                case Proven():
                    self.proven.append(step)
                case Stopped():
                    self.stopped.append(step)

    def confirm(self) -> None:
        self.confirmed = True
        self.note(self.sas.confirm())


def begin(asker: Party, asked: Party, *, in_room: bool = True) -> tuple[Side, Side]:
    """The side that asks and the side that was asked, which has sent its `ready`."""
    one = Side(asker, Sas.asking(TRANSACTION, asker, in_room=in_room))
    sas, steps = Sas.asked(TRANSACTION, asked, asker, Sas.request(asker), in_room=in_room)
    two = Side(asked, sas)
    two.note(steps)
    return one, two


def exchange(one: Side, two: Side) -> None:
    """Carry messages until nobody has one left."""
    while one.sent or two.sent:
        for here, there in ((one, two), (two, one)):
            while here.sent:
                send = here.sent.pop(0)
                there.note(there.sas.hear(send.kind, send.content, here.me))


def start(**change: object) -> JsonObject:
    content: dict[str, object] = {
        "from_device": "PHONE",
        "method": METHOD,
        "key_agreement_protocols": ["curve25519", AGREEMENT],
        "hashes": [HASH],
        "message_authentication_codes": ["hkdf-hmac-sha256", MAC],
        "short_authentication_string": ["emoji", "decimal"],
    }
    return address(cast("JsonObject", content | change), TRANSACTION, in_room=True)


def at(phase: Phase) -> Side:
    """Our side in this phase."""
    if phase is Phase.CANCELLED:
        side = at(Phase.READY)
        side.note(side.sas.hear("cancel", {"code": "m.user"}))
        return side
    asking = phase in {Phase.ASKED, Phase.OFFERED, Phase.REVEALED}
    one, two = begin(BOT, ALICE) if asking else begin(ALICE, BOT)
    ours = one if asking else two
    if ours.sas.phase is phase:
        return ours
    if asking or phase is Phase.PROMISED:
        for _ in range(10):
            here, there = (two, one) if two.sent else (one, two)
            send = here.sent.pop(0)
            there.note(there.sas.hear(send.kind, send.content, here.me))
            if ours.sas.phase is phase:
                return ours
        raise AssertionError(phase)
    exchange(one, two)
    if phase in {Phase.VOUCHED, Phase.CLOSING, Phase.DONE}:
        two.confirm()
    if phase in {Phase.HEARD, Phase.CLOSING, Phase.DONE}:
        one.confirm()
        while one.sent and ours.sas.phase is not phase:
            send = one.sent.pop(0)
            two.note(two.sas.hear(send.kind, send.content))
    if phase is Phase.DONE:
        exchange(one, two)
    assert phase is ours.sas.phase
    return ours


@pytest.mark.parametrize("in_room", [True, False])
@pytest.mark.parametrize(("asker", "asked"), [(ALICE, BOT), (BOT, ALICE)])
def test_both_show_the_same_and_prove_each_others_keys(asker: Party, asked: Party, in_room: bool) -> None:
    one, two = begin(asker, asked, in_room=in_room)
    exchange(one, two)
    assert one.shown == two.shown
    assert 7 == len(one.shown[0].emoji)
    one.confirm()
    two.confirm()
    exchange(one, two)
    assert [Proven(device_key=asked.device_key, master_key=asked.master_key or "")] == one.proven
    assert [Proven(device_key=asker.device_key, master_key=asker.master_key or "")] == two.proven


def test_the_emoji_are_those_of_the_shared_secret() -> None:
    ours, secret = at(Phase.READY), vodozemac.Sas()
    their_key = secret.public_key.to_base64()
    ours.note(ours.sas.hear("start", start()))
    ours.note(ours.sas.hear("key", {"key": their_key}))
    our_key = cast("str", ours.sent[-1].content["key"])
    shared = secret.diffie_hellman(vodozemac.Curve25519PublicKey.from_base64(our_key))
    pair = f"@alice:hs|PHONE|{their_key}|@bot:hs|BRIDGE|{our_key}"
    expected = shared.bytes(f"MATRIX_KEY_VERIFICATION_SAS|{pair}|{TRANSACTION}")
    assert [EMOJI[index] for index in expected.emoji_indices] == list(ours.shown[0].emoji)
    assert expected.decimals == ours.shown[0].decimals


def test_the_commitment_is_over_our_key_and_their_start() -> None:
    ours = at(Phase.READY)
    ours.note(ours.sas.hear("start", start()))
    commitment = ours.sent[-1].content["commitment"]
    ours.note(ours.sas.hear("key", {"key": vodozemac.Sas().public_key.to_base64()}))
    our_key = cast("str", ours.sent[-1].content["key"])
    assert to_base64(hashlib.sha256(our_key.encode() + to_canonical(start())).digest()) == commitment


def test_there_are_64_different_emoji() -> None:
    assert 64 == len(EMOJI) == len({emoji.picture for emoji in EMOJI}) == len({emoji.name for emoji in EMOJI})


def test_a_client_that_knows_only_numbers_is_shown_only_numbers() -> None:
    ours = at(Phase.READY)
    ours.note(ours.sas.hear("start", start(short_authentication_string=["decimal"])))
    assert ["decimal"] == ours.sent[-1].content["short_authentication_string"]
    ours.note(ours.sas.hear("key", {"key": vodozemac.Sas().public_key.to_base64()}))
    assert () == ours.shown[0].emoji


# ------------------------------------------------------------------------------------------------------- the table

EXPECTED = {
    (Phase.ASKED, "ready"): Phase.OFFERED,
    (Phase.READY, "start"): Phase.PROMISED,
    (Phase.OFFERED, "start"): Phase.PROMISED,
    (Phase.OFFERED, "accept"): Phase.REVEALED,
    (Phase.PROMISED, "key"): Phase.COMPARING,
    (Phase.REVEALED, "key"): Phase.COMPARING,
    (Phase.CLOSING, "done"): Phase.DONE,
}


def message(ours: Side, kind: str) -> JsonObject:
    """A message of this kind that is well made; a MAC cannot be, without the secret."""
    match kind:
        case "ready" | "request":
            return {"from_device": "PHONE", "methods": [METHOD]}
        case "start":
            return start()
        case "accept":
            return accept()
        case "key" if ours.sas.phase is Phase.REVEALED:
            key = vodozemac.Sas().public_key.to_base64()
            digest = hashlib.sha256(key.encode() + to_canonical(ours.sas._offer)).digest()  # pyright: ignore[reportPrivateUsage] - a liar needs to see inside
            ours.sas._commitment = to_base64(digest)  # pyright: ignore[reportPrivateUsage] - a liar needs to see inside
            return {"key": key}
        case "key":
            return {"key": vodozemac.Sas().public_key.to_base64()}
        case _:
            return {"code": "m.user"}


def accept(**change: object) -> JsonObject:
    content: dict[str, object] = {
        "method": METHOD,
        "key_agreement_protocol": AGREEMENT,
        "hash": HASH,
        "message_authentication_code": MAC,
        "short_authentication_string": list(STRINGS),
        "commitment": "abc",
    }
    return cast("JsonObject", content | change)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("kind", sorted(KINDS - {"cancel", "mac"}))
def test_what_is_not_expected_ends_it(phase: Phase, kind: str) -> None:
    ours = at(phase)
    over = phase in {Phase.DONE, Phase.CANCELLED}
    before = len(ours.stopped)
    ours.note(ours.sas.hear(kind, message(ours, kind), ALICE))
    assert EXPECTED.get((phase, kind), phase if over else Phase.CANCELLED) is ours.sas.phase
    if not over and (phase, kind) not in EXPECTED:
        assert [Stopped(code=Code.UNEXPECTED_MESSAGE, by_us=True)] == ours.stopped[before:]
        assert "cancel" == ours.sent[-1].kind


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in {Phase.DONE, Phase.CANCELLED}])
def test_they_may_cancel_at_any_time(phase: Phase) -> None:
    ours = at(phase)
    sent = len(ours.sent)
    ours.note(ours.sas.hear("cancel", {"code": "m.mismatched_sas"}))
    assert [Stopped(code="m.mismatched_sas", by_us=False)] == ours.stopped
    assert sent == len(ours.sent)
    assert [] == ours.sas.confirm()
    assert [] == ours.proven


def test_a_cancel_after_the_end_takes_nothing_back() -> None:
    ours = at(Phase.DONE)
    assert [] == ours.sas.hear("cancel", {"code": "m.user"}) == ours.sas.expire()
    assert Phase.DONE is ours.sas.phase


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in {Phase.DONE, Phase.CANCELLED}])
def test_it_ends_when_the_time_is_up(phase: Phase) -> None:
    ours = at(phase)
    ours.note(ours.sas.expire())
    assert [Stopped(code=Code.TIMEOUT, by_us=True)] == ours.stopped
    assert "m.timeout" == ours.sent[-1].content["code"]
    assert [] == ours.sas.expire()


def test_a_kind_that_no_verification_has_is_nothing() -> None:
    ours = at(Phase.COMPARING)
    assert [] == ours.sas.hear("frobnicate", {})
    assert Phase.COMPARING is ours.sas.phase


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in {Phase.COMPARING, Phase.HEARD}])
def test_a_confirmation_counts_only_while_something_is_shown(phase: Phase) -> None:
    assert [] == at(phase).sas.confirm()


def test_what_differs_is_told_to_the_other_side() -> None:
    one, two = begin(ALICE, BOT)
    exchange(one, two)
    two.note(two.sas.differ())
    exchange(one, two)
    assert [Stopped(code="m.mismatched_sas", by_us=False)] == one.stopped
    one.confirm()
    assert [] == one.proven == two.proven


# ---------------------------------------------------------------------------------------------- both start at once


def test_of_two_starts_that_of_the_smaller_user_counts() -> None:
    one, two = begin(BOT, ALICE)
    ready = two.sent.pop(0)
    one.note(one.sas.hear("ready", ready.content, ALICE))
    ours = one.sent.pop(0)
    # Her client starts as well; it goes on as if the bridge had only answered.
    hers = Side(ALICE, Sas.asking(TRANSACTION, ALICE, in_room=True))
    hers.note(hers.sas.hear("ready", {"from_device": "BRIDGE", "methods": [METHOD]}, BOT))
    assert [] == hers.sas.hear("start", ours.content)
    exchange(one, hers)
    assert one.shown == hers.shown != []
    one.confirm()
    hers.confirm()
    exchange(one, hers)
    assert 1 == len(one.proven) == len(hers.proven)


def test_of_two_starts_of_one_user_that_of_the_smaller_device_counts() -> None:
    small, large = replace(BOT, device_id="A", device_key=make_key("a")), replace(BOT, device_id="B")
    one, two = begin(small, large)
    one.note(one.sas.hear("ready", two.sent.pop(0).content, large))
    assert [] == one.sas.hear("start", start(from_device="B"))
    assert Phase.OFFERED is one.sas.phase


# -------------------------------------------------------------------------------------------------- what they get wrong


@pytest.mark.parametrize(
    ("phase", "kind", "content", "code"),
    [
        (Phase.ASKED, "ready", {"from_device": "OTHER", "methods": [METHOD]}, "m.user_mismatch"),
        (Phase.ASKED, "ready", {"from_device": "PHONE", "methods": ["m.qr_code.show.v1"]}, "m.unknown_method"),
        (Phase.ASKED, "ready", {"from_device": "PHONE", "methods": {METHOD: 1}}, "m.unknown_method"),
        (Phase.READY, "start", start(from_device="OTHER"), "m.user_mismatch"),
        (Phase.READY, "start", start(method="m.reciprocate.v1"), "m.unknown_method"),
        (Phase.READY, "start", start(key_agreement_protocols=["curve25519"]), "m.unknown_method"),
        (Phase.READY, "start", start(hashes=[]), "m.unknown_method"),
        (Phase.READY, "start", start(message_authentication_codes=["hkdf-hmac-sha256"]), "m.unknown_method"),
        (Phase.READY, "start", start(short_authentication_string=["words"]), "m.unknown_method"),
        (Phase.READY, "start", start(note=1.5), "m.invalid_message"),
        (Phase.READY, "start", start(note="\ud800"), "m.invalid_message"),
        (Phase.OFFERED, "accept", accept(key_agreement_protocol="curve25519"), "m.unknown_method"),
        (Phase.OFFERED, "accept", accept(hash="sha1"), "m.unknown_method"),
        (Phase.OFFERED, "accept", accept(message_authentication_code="hkdf-hmac-sha256"), "m.unknown_method"),
        (Phase.OFFERED, "accept", accept(short_authentication_string=None), "m.unknown_method"),
        (Phase.OFFERED, "accept", accept(commitment=7), "m.invalid_message"),
        (Phase.PROMISED, "key", {}, "m.invalid_message"),
        (Phase.PROMISED, "key", {"key": "no key"}, "m.invalid_message"),
        (Phase.PROMISED, "key", {"key": "\ud800"}, "m.invalid_message"),
        (Phase.PROMISED, "key", {"key": to_base64(bytes(32))}, "m.invalid_message"),
        (Phase.REVEALED, "key", {"key": 3}, "m.invalid_message"),
        (Phase.REVEALED, "key", {"key": vodozemac.Sas().public_key.to_base64()}, "m.mismatched_commitment"),
        (Phase.COMPARING, "mac", {}, "m.invalid_message"),
        (Phase.COMPARING, "mac", {"mac": {}, "keys": "abc"}, "m.key_mismatch"),
        (Phase.COMPARING, "mac", {"mac": [1], "keys": "\ud800"}, "m.key_mismatch"),
    ],
)
def test_a_wrong_message_ends_it_with_its_code(phase: Phase, kind: str, content: JsonObject, code: str) -> None:
    ours = at(phase)
    ours.note(ours.sas.hear(kind, content, ALICE))
    assert [Stopped(code=code, by_us=True)] == ours.stopped
    assert (ours.sent[-1].kind, ours.sent[-1].content["code"]) == ("cancel", code)
    assert [] == ours.proven


def test_our_own_key_sent_back_to_us_ends_it() -> None:
    ours = at(Phase.PROMISED)
    ours.note(ours.sas.hear("key", {"key": ours.sas._public}))  # pyright: ignore[reportPrivateUsage] - a liar needs to see inside
    assert [Stopped(code=Code.KEY_MISMATCH, by_us=True)] == ours.stopped


def test_a_device_that_nobody_knows_ends_it() -> None:
    ours = at(Phase.ASKED)
    ours.note(ours.sas.hear("ready", {"from_device": "PHONE", "methods": [METHOD]}, None))
    assert [Stopped(code=Code.USER_MISMATCH, by_us=True)] == ours.stopped


@pytest.mark.parametrize(
    "theirs",
    [replace(ALICE, master_key=None), replace(ALICE, device_id=ALICE.master_key or "", device_key=make_key("x"))],
)
def test_a_device_without_an_identity_or_named_like_one_is_not_verified(theirs: Party) -> None:
    """A server that may name devices could let a device key pass for a master key, or the other way round."""
    one, two = begin(theirs, BOT)
    assert [Stopped(code=Code.KEY_MISMATCH, by_us=True)] == two.stopped
    assert "cancel" == two.sent[-1].kind
    assert one.sas.phase is Phase.ASKED


# ---------------------------------------------------------------------------------------------- somebody in between


def test_who_sits_in_between_shows_other_emoji() -> None:
    """Mallory answers each side with keys of her own; she can do everything but make both see the same."""
    alice, false_bot = begin(ALICE, BOT)
    false_alice, bot = begin(ALICE, BOT)
    exchange(alice, false_bot)
    exchange(false_alice, bot)
    assert alice.shown != bot.shown


def lied_to(side: Party, other: Party, seen: Party) -> tuple[Side, Side]:
    """`side` is told by its homeserver that `other` has the keys of `seen`; all messages are the real ones."""
    one = Side(other, Sas.asking(TRANSACTION, other, in_room=True))
    sas, steps = Sas.asked(TRANSACTION, side, seen, Sas.request(other), in_room=True)
    two = Side(side, sas)
    two.note(steps)
    return one, two


@pytest.mark.parametrize("lie", [{"master_key": make_key("mallory")}, {"device_key": make_key("mallory")}])
def test_keys_that_the_homeserver_made_up_are_noticed(lie: Mapping[str, str]) -> None:
    one, two = lied_to(BOT, ALICE, replace(ALICE, **lie))
    exchange(one, two)
    assert one.shown == two.shown
    one.confirm()
    two.confirm()
    exchange(one, two)
    assert [Code.KEY_MISMATCH] == [stopped.code for stopped in two.stopped]
    assert [] == one.proven == two.proven


def test_a_key_taken_off_the_list_is_noticed() -> None:
    one, two = begin(ALICE, BOT)
    exchange(one, two)
    one.confirm()
    mac = one.sent.pop().content
    macs = dict(cast("dict[str, str]", mac["mac"]))
    macs.popitem()
    two.note(two.sas.hear("mac", cast("JsonObject", {**mac, "mac": macs})))
    assert [Stopped(code=Code.KEY_MISMATCH, by_us=True)] == two.stopped


def test_a_key_put_on_the_list_is_noticed() -> None:
    one, two = begin(ALICE, BOT)
    exchange(one, two)
    one.confirm()
    mac = one.sent.pop().content
    macs = {**cast("dict[str, str]", mac["mac"]), "ed25519:MORE": "abc"}
    two.note(two.sas.hear("mac", cast("JsonObject", {**mac, "mac": macs})))
    assert [Stopped(code=Code.KEY_MISMATCH, by_us=True)] == two.stopped


# ------------------------------------------------------------------------------------------- any order, any change

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["methods", "from_device", "method", "key", "mac", "keys", "commitment", "hash", "code", "m.relates_to"]
)
MUTATION = st.tuples(FIELDS, JSON)
MOVE = st.one_of(
    st.tuples(st.just("deliver"), st.integers(0, 3)),  # the nth of what waits: so any order
    st.tuples(st.just("repeat"), st.integers(0, 20)),  # something that was sent before, to either side
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("mutate"), MUTATION),
    st.tuples(st.just("confirm"), st.just(0)),
    st.tuples(st.just("junk"), st.tuples(st.sampled_from(sorted(KINDS)), st.dictionaries(FIELDS, JSON, max_size=4))),
)
LIKELY = st.just(("deliver", 0))


@settings(max_examples=400)
@given(moves=st.lists(st.tuples(st.integers(0, 1), LIKELY | LIKELY | MOVE), max_size=40), swap=st.booleans())
def test_whatever_happens_on_the_way_only_true_keys_that_both_confirmed_are_proven(
    moves: list[tuple[int, tuple[str, object]]], swap: bool
) -> None:
    sides = begin(BOT, ALICE) if swap else begin(ALICE, BOT)
    history: list[Send] = []
    for index, (move, detail) in moves:
        here, there = sides[index], sides[1 - index]
        match move, detail:
            case "deliver", int(nth) if here.sent:
                send = here.sent.pop(min(nth, len(here.sent) - 1))
                history.append(send)
                there.note(there.sas.hear(send.kind, send.content, here.me))
            case "repeat", int(nth) if history:
                send = history[nth % len(history)]
                there.note(there.sas.hear(send.kind, send.content, here.me))
            case "drop", int(nth) if here.sent:
                history.append(here.sent.pop(min(nth, len(here.sent) - 1)))
            case "mutate", _ if here.sent:
                send, (key, value) = here.sent.pop(0), cast("tuple[str, JsonValue]", detail)
                there.note(there.sas.hear(send.kind, {**send.content, key: value}, here.me))
            case "confirm", _:
                here.confirmed = here.confirmed or here.sas.phase in {Phase.COMPARING, Phase.HEARD}
                here.note(here.sas.confirm())
            case "junk", _:
                there.note(there.sas.hear(*cast("tuple[str, JsonObject]", detail), here.me))
            case _:
                pass
    for here, there in (sides, sides[::-1]):
        for proven in here.proven:
            assert here.confirmed
            assert there.confirmed
            assert here.shown == there.shown
            assert (there.me.device_key, there.me.master_key) == (proven.device_key, proven.master_key)


def test_a_confirmation_alone_proves_nothing() -> None:
    for silent in (0, 1):
        sides = begin(ALICE, BOT)
        exchange(*sides)
        sides[1 - silent].confirm()
        exchange(*sides)
        assert [] == sides[0].proven == sides[1].proven
