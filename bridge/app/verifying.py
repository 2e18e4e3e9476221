"""`verify`: the identity of an approver compared and pinned, while the bridge is stopped and none of its agents lives.

Above it: app. Below it: the account and its keys, `matrix.verification` and `matrix.visit`, the ledger, the terminal.

It works on the bridge's own files under their lock, and not through the control socket of a bridge that runs: a harness may
run as the same user as the bridge (rule 13's worry), and would then say yes in the operator's place and approve itself from
then on.
"""

import json
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from bridge.app.opening import find_password, make_client, open_account
from bridge.app.service import find_room, read_clock
from bridge.config import Config
from bridge.core.changes import StorePin
from bridge.core.errors import BridgeError, ConfigError, RequestRefused
from bridge.core.events import Verified
from bridge.core.model import RoomId, UserId
from bridge.matrix.client import Client
from bridge.matrix.crypto.identity import read_kept
from bridge.matrix.crypto.machine import Machine, ToDevice
from bridge.matrix.crypto.steps import Party, Show
from bridge.matrix.encryption import Encryption
from bridge.matrix.events import Source
from bridge.matrix.keyserver import KeyServer
from bridge.matrix.patience import Patience
from bridge.matrix.verification import LIMIT_S, Outcome, Verifications
from bridge.matrix.visit import RoadPost, Visit
from bridge.ops.folder import hold_state_folder, open_state_folder
from bridge.ops.verify import Terminal, ask_whether_same, list_pins, show_failure, show_pin, show_pinned
from bridge.store.ledger import SqliteLedger, read_pins

WAIT_S = 2 * LIMIT_S  # for somebody to ask, and then for all of a verification
GOODBYE_S = 5.0  # to tell the other client that it is over, when the operator ends the command

RUNNING = (
    "The bridge is running. Stop it, verify, and start it again: while no agent of it lives, none can say yes in your "
    "place."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Whom `verify` is about. Without a `user` it waits for the client of any approver."""

    folder: Path
    user: UserId | None
    approvers: frozenset[UserId]
    rooms: tuple[str, ...]  # by id or alias, those of the agents that the person may answer first


def make_plan(config: Config, user: str | None) -> Plan:
    """Raises `ConfigError` for somebody who is no approver: a pin of theirs would mean nothing."""
    approvers = frozenset(UserId(one) for agent in config.agents.values() for one in agent.approvers)
    if user is not None and user not in approvers:
        raise ConfigError(f"{user} is no approver of any agent: only approvers are verified.")
    agents = sorted(config.agents.values(), key=lambda agent: user not in agent.approvers)
    rooms = dict.fromkeys(agent.room for agent in agents if agent.room is not None)
    return Plan(
        folder=config.state_dir,
        user=UserId(user) if user is not None else None,
        approvers=approvers if user is None else frozenset({UserId(user)}),
        rooms=tuple(rooms),
    )


@dataclass(slots=True)
class TerminalOperator:
    """The person at the terminal; implements `verification.Operator`. `over` is set with the first outcome."""

    terminal: Terminal
    outcome: Outcome | None = None
    over: anyio.Event = field(default_factory=anyio.Event)

    async def compare(self, user: UserId, device_id: str, show: Show) -> bool | None:
        """Whether both show the same."""
        return await ask_whether_same(self.terminal, user, device_id, show.emoji, show.decimals)

    def tell(self, outcome: Outcome) -> None:
        """How it ended."""
        self.terminal.say("")
        if outcome.master is not None:
            self.terminal.say(show_pinned(outcome.user, outcome.master))
        else:
            self.terminal.say(show_failure(outcome.user, outcome.code, by_us=outcome.by_us))
        self.outcome = outcome
        self.over.set()


async def verify_with(config: Config, user: str | None, terminal: Terminal) -> int:
    """Verify one approver; 0 when they were pinned."""
    plan = make_plan(config, user)
    open_state_folder(plan.folder)
    with _hold(plan.folder):
        address, account = await open_account(config)
        client = make_client(address, account, config.saved_token_file, lambda: find_password(config))
        try:
            ledger = await SqliteLedger.open(config.ledger_file)
            try:

                async def pin(verified: Verified) -> None:
                    await ledger.commit([StorePin(user=verified.user, master=verified.master)], at=read_clock())

                with Machine(plan.folder, account.user_id, account.device_id) as machine:
                    return await verify_as(plan, client, machine, pin, terminal)
            finally:
                with anyio.CancelScope(shield=True):
                    await ledger.close()
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()


@contextmanager
def _hold(folder: Path) -> Generator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_state_folder(folder))
        except ConfigError:
            raise
        except BridgeError:
            raise BridgeError(RUNNING) from None
        yield


async def verify_as(
    plan: Plan, client: Client, machine: Machine, pin: Callable[[Verified], Awaitable[None]], terminal: Terminal
) -> int:
    """The verification itself, on an open account and open keys."""
    identity = read_kept(plan.folder, machine.user_id).identity
    if identity is None:
        raise ConfigError("The bridge's account has no identity of its own yet: run `acp-matrix-bridge login`.")
    # Ours from our own files, and not as the homeserver shows it: it could show both sides the same wrong key.
    ours = Party(
        user=machine.user_id,
        device_id=machine.device_id,
        device_key=machine.fingerprint,
        master_key=identity.master_key,
    )
    mail: list[Source] = []
    encryption = Encryption(client, machine, overhears=lambda message: mail.append(_to_source(message)))
    await encryption.start()
    keys, patience, operator = KeyServer(client), Patience(), TerminalOperator(terminal)
    verifications = Verifications(
        ours=ours,
        approvers=plan.approvers,
        find_party=lambda user, device_id: find_party(encryption, user, device_id),
        post=RoadPost(
            client,
            encryption,
            send_to_device=lambda kind, to, device, content, txn: keys.send_to_device(
                kind, {to: {device: content}}, txn
            ),
            patience=patience,
        ),
        operator=operator,
        pinned=pin,
        clock=read_clock,
    )
    rooms = [await find_room(client, room) for room in plan.rooms]
    visit = Visit(client, encryption, verifications, rooms=rooms, mail=mail, patience=patience)
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(verifications.run)
            ready = anyio.Event()
            tasks.start_soon(_follow, visit, ready)
            await ready.wait()
            await _begin(plan, client, rooms, verifications, operator)
            with anyio.move_on_after(WAIT_S):
                await operator.over.wait()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(GOODBYE_S, shield=True):
            await verifications.cancel_all()
    if operator.outcome is None:
        terminal.say("Nobody has asked for a verification.")
        return BridgeError.exit_code
    return 0 if operator.outcome.master is not None else BridgeError.exit_code


async def find_party(encryption: Encryption, user: UserId, device_id: str) -> Party | None:
    """The keys of another side, as its own signatures vouch for them."""
    found = await encryption.devices_of(user)
    device = found.devices.get(device_id)
    if device is None:
        return None
    return Party(user=user, device_id=device_id, device_key=device.signing_key, master_key=found.master)


async def _follow(visit: Visit, ready: anyio.Event) -> None:
    await visit.run(ready=ready)


async def _begin(
    plan: Plan,
    client: Client,
    rooms: list[RoomId],
    verifications: Verifications,
    operator: TerminalOperator,
) -> None:
    """Take a request that waits already; else ask the person's client, in the first room they share with the bridge."""
    say, user = operator.terminal.say, plan.user
    if verifications.busy or operator.over.is_set():
        return
    if user is None:
        say("Waiting until the client of an approver asks for a verification. Ctrl-C ends it.")
        return
    for room in rooms:
        try:
            members = await client.joined_members(room)
        except RequestRefused:  # the bridge is not in it
            continue
        if user in members:
            if await verifications.start(user, room):
                say(
                    f"{user} was asked for a verification in the room {room}: accept it in your client. Ctrl-C ends it."
                )
            return
    raise BridgeError(
        f"{user} and the bridge share none of the rooms in the config. Invite both, start `run` once so that the bridge "
        "joins, stop it, and try again."
    )


def _to_source(message: ToDevice) -> Source:
    return {"type": message.kind, "sender": message.sender, "content": message.content}


def list_pinned(config: Config, terminal: Terminal, *, as_json: bool) -> int:
    """Show whose identity is pinned and whose is not yet; a running bridge is no hindrance."""
    approvers = make_plan(config, None).approvers
    for line in list_pins(approvers, read_pins(config.ledger_file)):
        terminal.say(json.dumps(line) if as_json else show_pin(line))
    return 0
