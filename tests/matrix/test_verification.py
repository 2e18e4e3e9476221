"""Verifications over both roads with a person's client that is the same state machine, and no homeserver at all."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.errors import HomeserverUnreachable, LedgerFull
from bridge.core.events import Verified
from bridge.core.model import EventId, JsonObject, Millis, RoomId, UserId
from bridge.matrix.crypto.sas import Phase, Sas
from bridge.matrix.crypto.steps import Party, Send, Show, Step
from bridge.matrix.events import VERIFICATION, Source
from bridge.matrix.verification import LIMIT_S, NEWEST_MS, NOT_KEPT, NOT_SENT, OLDEST_MS, Outcome, Verifications
from tests.matrix.test_sas import ALICE, BOT, TRANSACTION, make_key

ROOM = RoomId("!room:hs")
USER = UserId(ALICE.user)
NOW = 1_000_000_000
BOB = Party(user="@bob:hs", device_id="LAPTOP", device_key=make_key("laptop"), master_key=make_key("bob"))


@dataclass
class World:
    """The bridge's verifications, the operator's say, and what was sent."""

    verifications: Verifications = field(init=False)
    sent: list[tuple[str, RoomId | None, str, JsonObject]] = field(
        default_factory=list[tuple[str, RoomId | None, str, JsonObject]]
    )
    shown: list[Show] = field(default_factory=list[Show])
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    pins: list[Verified] = field(default_factory=list[Verified])
    says: bool | None = True
    decided: anyio.Event = field(default_factory=anyio.Event)  # the operator answers once it is set
    asked: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    withdrawn: anyio.Event = field(default_factory=anyio.Event)
    away: bool = False
    full: bool = False
    parties: dict[tuple[str, str], Party] = field(
        default_factory=lambda: {(party.user, party.device_id): party for party in (ALICE, BOB)}
    )

    async def find_party(self, user: UserId, device_id: str) -> Party | None:
        if self.away:
            raise HomeserverUnreachable("No connection to the homeserver.")
        return self.parties.get((user, device_id))

    async def send_to_device(self, kind: str, user: UserId, device_id: str, content: JsonObject) -> None:
        if self.away:
            raise HomeserverUnreachable("No connection to the homeserver.")
        self.sent.append((kind, None, f"{user} {device_id}", content))

    async def send_in_room(self, room: RoomId, kind: str, content: JsonObject) -> EventId:
        if self.away:
            raise HomeserverUnreachable("No connection to the homeserver.")
        self.sent.append((kind, room, "", content))
        return EventId(f"$sent{len(self.sent)}")

    async def compare(self, user: UserId, device_id: str, show: Show) -> bool | None:
        del user, device_id
        self.shown.append(show)
        self.asked.set()
        try:
            await self.decided.wait()
        except anyio.get_cancelled_exc_class():
            self.withdrawn.set()
            raise
        return self.says

    def tell(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.ended.set()

    async def pin(self, pin: Verified) -> None:
        if self.full:
            raise LedgerFull("No space is left.")
        self.pins.append(pin)

    def kinds(self) -> list[str]:
        return [kind.removeprefix(VERIFICATION) for kind, _, _, _ in self.sent]


@dataclass
class Person:
    """Her client."""

    world: World
    room: RoomId | None
    sas: Sas
    me: Party = ALICE
    transaction: str = TRANSACTION
    heard: int = 0
    shown: list[Show] = field(default_factory=list[Show])
    done: bool = False

    async def hear(self) -> None:
        """Take what the bridge sent her, and answer."""
        while self.heard < len(self.world.sent):
            kind, _, _, content = self.world.sent[self.heard]
            self.heard += 1
            await self.send(self.sas.hear(kind.removeprefix(VERIFICATION), content, BOT))

    async def send(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Send(kind, content) if self.room is None:
                    await self.world.verifications.hear_to_device(to_device(kind, content, self.me.user))
                case Send(kind, content):
                    await self.world.verifications.hear_in_room(
                        ROOM, in_room(VERIFICATION + kind, content, self.me.user)
                    )
                case Show():
                    self.shown.append(step)
                case _:
                    self.done = True

    async def confirm(self) -> None:
        await self.send(self.sas.confirm())


def to_device(kind: str, content: object, sender: str = ALICE.user) -> Source:
    return {"type": VERIFICATION + kind, "sender": sender, "content": content}


def in_room(kind: str, content: object, sender: str = ALICE.user, event_id: str = "$x", at: object = NOW) -> Source:
    return {"type": kind, "sender": sender, "event_id": event_id, "content": content, "origin_server_ts": at}


def request(room: RoomId | None, me: Party = ALICE, *, transaction: str = TRANSACTION, at: object = NOW) -> Source:
    content: dict[str, object] = dict(Sas.request(me))
    if room is None:
        return to_device("request", content | {"transaction_id": transaction, "timestamp": at}, me.user)
    content |= {"msgtype": "m.key.verification.request", "to": BOT.user, "body": "…"}
    return in_room("m.room.message", content, me.user, transaction, at)


@asynccontextmanager
async def running(*, limit_s: float = LIMIT_S) -> AsyncGenerator[World]:
    world = World()
    world.verifications = Verifications(
        ours=BOT,
        approvers={USER, UserId(BOB.user)},
        find_party=world.find_party,
        post=world,
        operator=world,
        pinned=world.pin,
        clock=lambda: Millis(NOW),
        limit_s=limit_s,
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await tasks.start(world.verifications.run)
            yield world
            tasks.cancel_scope.cancel()


async def hear(world: World, room: RoomId | None, source: Source) -> None:
    if room is None:
        await world.verifications.hear_to_device(source)
    else:
        await world.verifications.hear_in_room(room, source)


async def ask(world: World, room: RoomId | None, me: Party = ALICE) -> Person:
    """Her client asks, and is at the emoji."""
    person = Person(world, room, Sas.asking(TRANSACTION, me, in_room=room is not None), me)
    await hear(world, room, request(room, me))
    await person.hear()
    return person


ROADS = pytest.mark.parametrize("room", [ROOM, None])
PINNED = Verified(user=USER, master=ALICE.master_key or "")


@ROADS
async def test_her_client_asks_and_her_identity_is_pinned(room: RoomId | None) -> None:
    async with running() as world:
        person = await ask(world, room)
        await world.asked.wait()
        assert person.shown == world.shown
        world.decided.set()
        await person.confirm()
        while not world.ended.is_set():
            await anyio.lowlevel.checkpoint()
            await person.hear()
        assert [PINNED] == world.pins
        assert [Outcome(user=USER, device_id="PHONE", master=ALICE.master_key)] == world.outcomes
        assert person.done
        assert {room} == {where for _, where, _, _ in world.sent}


async def test_the_bridge_asks_in_a_room() -> None:
    async with running() as world:
        assert await world.verifications.start(USER, ROOM)
        kind, where, _, content = world.sent[0]
        assert ("m.room.message", ROOM) == (kind, where)
        assert ("m.key.verification.request", ALICE.user) == (content["msgtype"], content["to"])
        sas, steps = Sas.asked("$sent1", ALICE, BOT, content, in_room=True)
        person = Person(world, ROOM, sas, heard=1)
        await person.send(steps)
        await person.hear()
        await world.asked.wait()
        world.decided.set()
        await person.confirm()
        while not world.ended.is_set():
            await anyio.lowlevel.checkpoint()
            await person.hear()
        assert [PINNED] == world.pins


@ROADS
@pytest.mark.parametrize(("says", "code"), [(False, "m.mismatched_sas"), (None, "m.user")])
async def test_without_the_operators_yes_nothing_is_pinned(room: RoomId | None, says: bool | None, code: str) -> None:
    async with running() as world:
        world.says = says
        person = await ask(world, room)
        await person.confirm()
        world.decided.set()
        await world.ended.wait()
        await person.hear()
        assert [] == world.pins
        assert [Outcome(user=USER, device_id="PHONE", code=code, by_us=True)] == world.outcomes
        assert Phase.CANCELLED is person.sas.phase


@ROADS
async def test_the_question_is_withdrawn_when_she_cancels(room: RoomId | None) -> None:
    async with running() as world:
        person = await ask(world, room)
        await world.asked.wait()
        await person.send(person.sas.differ())
        await world.withdrawn.wait()
        world.decided.set()
        assert [Outcome(user=USER, device_id="PHONE", code="m.mismatched_sas")] == world.outcomes
        assert [] == world.pins


@ROADS
async def test_it_ends_when_the_time_is_up(room: RoomId | None) -> None:
    async with running(limit_s=0) as world:
        await hear(world, room, request(room))
        await world.ended.wait()
        assert [Outcome(user=USER, device_id="PHONE", code="m.timeout", by_us=True)] == world.outcomes
        assert ["ready", "cancel"] == world.kinds()


# --------------------------------------------------------------------------------------------------- what is not taken


@ROADS
async def test_a_stranger_is_not_answered(room: RoomId | None) -> None:
    async with running() as world:
        stranger = Party(user="@mallory:hs", device_id="M", device_key=make_key("m"), master_key=make_key("mm"))
        world.parties["@mallory:hs", "M"] = stranger
        await hear(world, room, request(room, stranger))
        assert [] == world.sent == world.outcomes
        assert not await world.verifications.start(UserId("@mallory:hs"), ROOM)


@ROADS
@pytest.mark.parametrize("at", [NOW - OLDEST_MS - 1, NOW + NEWEST_MS + 1, None, "now", 1.5, math.inf])
async def test_an_old_request_is_not_answered(room: RoomId | None, at: object) -> None:
    async with running() as world:
        await hear(world, room, request(room, at=at))
        assert [] == world.sent


@pytest.mark.parametrize(
    "change", [{"to": "@other:hs"}, {"msgtype": "m.text"}, {"m.relates_to": {"rel_type": "m.replace"}}]
)
async def test_what_is_no_request_to_the_bridge_is_none(change: dict[str, object]) -> None:
    async with running() as world:
        source = request(ROOM)
        content = cast("dict[str, object]", source["content"]) | change
        await world.verifications.hear_in_room(ROOM, {**source, "content": content})
        assert [] == world.sent


async def test_a_verification_between_others_in_the_room_is_left_alone() -> None:
    async with running() as world:
        for kind in ("ready", "start", "key", "mac", "done", "cancel"):
            relates = {"m.relates_to": {"rel_type": "m.reference", "event_id": "$theirs"}}
            await world.verifications.hear_in_room(ROOM, in_room(VERIFICATION + kind, relates))
        assert [] == world.sent


async def test_a_message_of_no_verification_is_told_so() -> None:
    async with running() as world:
        for kind in ("start", "cancel", "done"):
            await world.verifications.hear_to_device(to_device(kind, {"transaction_id": "old"}))
        assert [] == world.sent
        await world.verifications.hear_to_device(to_device("mac", {"transaction_id": "old"}))
        assert [(f"{VERIFICATION}cancel", "@alice:hs *", "m.unknown_transaction")] == [
            (kind, whom, content["code"]) for kind, _, whom, content in world.sent
        ]


@ROADS
async def test_a_device_that_the_homeserver_does_not_know_is_refused(room: RoomId | None) -> None:
    async with running() as world:
        world.parties.clear()
        await hear(world, room, request(room))
        assert ["cancel"] == world.kinds()
        assert ["m.user_mismatch"] == [outcome.code for outcome in world.outcomes]


async def test_another_persons_message_is_no_message_of_hers() -> None:
    async with running() as world:
        await ask(world, None)
        await world.asked.wait()
        await world.verifications.hear_to_device(to_device("cancel", {"transaction_id": TRANSACTION}, BOB.user))
        await world.verifications.hear_in_room(
            ROOM,
            in_room(f"{VERIFICATION}cancel", {"m.relates_to": {"rel_type": "m.reference", "event_id": TRANSACTION}}),
        )
        assert [] == world.outcomes


# ------------------------------------------------------------------------------------------------------- one at a time


@ROADS
async def test_two_attempts_of_one_person_end_both(room: RoomId | None) -> None:
    async with running() as world:
        await ask(world, room)
        await world.asked.wait()
        await hear(world, room, request(room, transaction="$again"))
        assert ["cancel", "cancel"] == world.kinds()[-2:]
        assert ["m.unexpected_message"] == [outcome.code for outcome in world.outcomes]
        assert not world.verifications._exchanges  # pyright: ignore[reportPrivateUsage] - what is kept of it has no public name


async def test_the_same_request_twice_is_one() -> None:
    async with running() as world:
        await hear(world, ROOM, request(ROOM))
        await hear(world, ROOM, request(ROOM))
        assert ["ready"] == world.kinds()


async def test_when_both_ask_her_request_is_taken() -> None:
    async with running() as world:
        assert await world.verifications.start(USER, ROOM)
        assert not await world.verifications.start(USER, ROOM)
        await hear(world, None, request(None))
        assert ["m.room.message", "cancel", "ready"] == world.kinds()
        assert [] == world.outcomes


async def test_two_people_are_verified_at_once() -> None:
    async with running() as world:
        await hear(world, ROOM, request(ROOM))
        await hear(world, ROOM, request(ROOM, BOB, transaction="$bob"))
        assert ["ready", "ready"] == world.kinds()
        await world.verifications.cancel(USER)
        assert {UserId(BOB.user)} == set(world.verifications._exchanges)  # pyright: ignore[reportPrivateUsage] - what is kept of it has no public name


async def test_a_request_that_another_device_of_the_bot_took_is_left_to_it() -> None:
    async with running() as world:
        await hear(world, ROOM, request(ROOM))
        relates = {"m.relates_to": {"rel_type": "m.reference", "event_id": TRANSACTION}}
        ready = in_room(f"{VERIFICATION}ready", {**relates, "from_device": BOT.device_id}, BOT.user)
        await world.verifications.hear_in_room(ROOM, ready)
        assert [] == world.outcomes
        other = in_room(f"{VERIFICATION}ready", {**relates, "from_device": "OTHER"}, BOT.user)
        await world.verifications.hear_in_room(ROOM, other)
        assert ["m.accepted"] == [outcome.code for outcome in world.outcomes]
        assert ["ready"] == world.kinds()


async def test_what_was_left_to_another_device_can_not_be_confirmed_any_more() -> None:
    async with running() as world:
        await ask(world, ROOM)
        await world.asked.wait()
        sas = world.verifications._exchanges[USER].sas  # pyright: ignore[reportPrivateUsage] - what is kept of it has no public name
        relates = {"m.relates_to": {"rel_type": "m.reference", "event_id": TRANSACTION}, "from_device": "OTHER"}
        await world.verifications.hear_in_room(ROOM, in_room(f"{VERIFICATION}ready", relates, BOT.user))
        assert [] == sas.confirm()


@pytest.mark.parametrize(
    "odd",
    [
        {"content": {"m.relates_to": {"rel_type": "m.thread", "event_id": TRANSACTION}}},
        {"content": {"m.relates_to": {"rel_type": "m.reference", "event_id": "$another"}}},
        {"content": {"m.relates_to": {"rel_type": "m.reference", "event_id": TRANSACTION}}, "state_key": ""},
    ],
)
async def test_what_belongs_to_no_verification_of_hers_ends_none(odd: dict[str, object]) -> None:
    async with running() as world:
        await ask(world, ROOM)
        await world.asked.wait()
        await world.verifications.hear_in_room(ROOM, {**in_room(f"{VERIFICATION}cancel", {}), **odd})
        assert [] == world.outcomes


# --------------------------------------------------------------------------------------------------------- what fails


@ROADS
async def test_a_message_that_cannot_be_sent_ends_it(room: RoomId | None) -> None:
    async with running() as world:
        await ask(world, room)
        await world.asked.wait()
        world.away = True
        world.decided.set()
        await world.ended.wait()
        assert [NOT_SENT] == [outcome.code for outcome in world.outcomes]
        assert not world.verifications._exchanges  # pyright: ignore[reportPrivateUsage] - what is kept of it has no public name


async def test_a_request_that_cannot_be_sent_is_told() -> None:
    async with running() as world:
        world.away = True
        assert not await world.verifications.start(USER, ROOM)
        await hear(world, ROOM, request(ROOM))
        assert [NOT_SENT, "m.user_mismatch"] == [outcome.code for outcome in world.outcomes]


async def test_a_pin_that_cannot_be_stored_is_told() -> None:
    async with running() as world:
        world.full = True
        person = await ask(world, None)
        await world.asked.wait()
        world.decided.set()
        await person.confirm()
        while not world.ended.is_set():
            await anyio.lowlevel.checkpoint()
            await person.hear()
        assert [NOT_KEPT] == [outcome.code for outcome in world.outcomes]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(ALICE.user) | st.just(NOW),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["type", "sender", "content", "event_id", "origin_server_ts", "state_key"])
INNER = st.sampled_from(
    ["transaction_id", "from_device", "methods", "timestamp", "to", "msgtype", "m.relates_to", "key"]
)
EVENTS = st.tuples(
    st.booleans(),
    st.sampled_from(["request", "ready", "start", "accept", "key", "mac", "done", "cancel", "?"]),
    st.dictionaries(KEYS, JSON, max_size=2),
    st.dictionaries(INNER, JSON | st.just(TRANSACTION), max_size=4),
)


@settings(max_examples=150)
@given(st.lists(EVENTS, max_size=8))
def test_no_event_raises_or_pins(odd: list[tuple[bool, str, dict[str, object], dict[str, object]]]) -> None:
    async def take() -> list[Verified]:
        async with running() as world:
            world.decided.set()
            await ask(world, None)
            for room, kind, outer, inner in odd:
                if room:
                    await world.verifications.hear_in_room(ROOM, {**in_room(VERIFICATION + kind, inner), **outer})
                else:
                    await world.verifications.hear_to_device({**to_device(kind, inner), **outer})
        return world.pins

    assert [] == anyio.run(take)
