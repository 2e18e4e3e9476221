"""One bridge on one state folder: the lock, the signals, and everything that is opened before there is anything to do.

Above it: service, for `run` and for a question. Below it: opening (the account), device (its keys), the ledger. It refuses to
know rooms and agents: `work` is given what is open, and when it is to end.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from bridge.acp.agent import Harnesses
from bridge.app.device import open_device
from bridge.app.opening import find_password, make_client, open_account
from bridge.config import Config
from bridge.core.errors import (
    CredentialsRefused,
    HomeserverUnreachable,
    KeysDamaged,
    KeysLost,
    RateLimited,
    RequestRefused,
)
from bridge.matrix.client import Client
from bridge.matrix.encryption import Encryption
from bridge.matrix.patience import Patience
from bridge.ops.folder import hold_state_folder, open_state_folder
from bridge.ops.login import LoggedIn
from bridge.store.ledger import SqliteLedger

log = structlog.get_logger()

T = TypeVar("T")

SWITCHED_OFF = "The config says encryption = false, so nothing is sent into encrypted rooms."


@dataclass(slots=True)
class Stop:
    """Whether the bridge is to end, and which process groups nobody would end if it had to end at once."""

    asked: anyio.Event = field(default_factory=anyio.Event)
    harnesses: Harnesses | None = None

    def force(self) -> NoReturn:
        """End at once, and leave no harness behind: one that outlives the bridge acts without anybody's leave."""
        log.warning("bridge.forced_end")
        for leader in self.harnesses.pids if self.harnesses else ():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        os._exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """What is open. Without `encryption`, `no_encryption` is the sentence that says why."""

    account: LoggedIn
    client: Client
    ledger: SqliteLedger
    encryption: Encryption | None
    no_encryption: str


Work: TypeAlias = Callable[[Open, Stop], Awaitable[T]]


async def be_alone(config: Config, work: Work[T]) -> T | None:
    """Do this as the one bridge of the state folder; None when a signal came before it could begin."""
    open_state_folder(config.state_dir)
    with hold_state_folder(config.state_dir):
        stop, result = Stop(), None
        async with anyio.create_task_group() as tasks:
            await tasks.start(_watch_signals, stop)
            opened = await unless(stop.asked, lambda: until_reached(lambda: open_account(config)))
            if opened is not None:
                result = await _work_as(config, *opened, stop, work)
            tasks.cancel_scope.cancel()
        return result


async def _work_as(config: Config, address: str, account: LoggedIn, stop: Stop, work: Work[T]) -> T | None:
    async with AsyncExitStack() as open_now:
        client = make_client(address, account, config.saved_token_file, lambda: find_password(config))
        open_now.push_async_callback(_shielded, client.close)
        ledger = await SqliteLedger.open(config.ledger_file)
        open_now.push_async_callback(_shielded, ledger.close)
        keys = await unless(
            stop.asked, lambda: until_reached(lambda: _open_encryption(config, client, account, open_now))
        )
        if keys is None:
            return None
        encryption, why = keys
        opened = Open(account=account, client=client, ledger=ledger, encryption=encryption, no_encryption=why)
        return await work(opened, stop)
    raise AssertionError("unreachable")


async def _open_encryption(
    config: Config, client: Client, account: LoggedIn, open_now: AsyncExitStack
) -> tuple[Encryption | None, str]:
    """The device's keys, or why there are none: unencrypted rooms are served all the same."""
    if not config.matrix.encryption:
        return None, SWITCHED_OFF
    try:
        device = await open_now.enter_async_context(open_device(client, account, config.state_dir))
        await until_reached(lambda: device.sign_or_warn(find_password(config)))
    except (KeysLost, KeysDamaged) as error:
        log.error("crypto.unavailable", why=str(error))  # noqa: TRY400 - the sentence says it all
        return None, str(error)
    except RequestRefused as refused:
        why = f"The homeserver refuses the keys of this device ({refused.errcode or refused.status})."
        log.error("crypto.unavailable", why=why)  # noqa: TRY400 - the sentence says it all
        return None, why
    except CredentialsRefused as error:
        if account.device_id:
            raise
        log.warning("crypto.unavailable", why=str(error))
        return None, str(error)
    return device.encryption, ""


async def _shielded(close: Callable[[], Awaitable[None]]) -> None:
    """Close it also while everything is being cancelled."""
    with anyio.CancelScope(shield=True):
        await close()


async def _watch_signals(stop: Stop, *, task_status: TaskStatus[None]) -> None:
    """The first signal ends in order, a second one at once. As process 1 nothing else would end us.

    SIGHUP says that the terminal was closed; `nohup` has it ignored, and then it stays so.
    """
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with anyio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            if stop.asked.is_set():
                stop.force()
            log.info("bridge.ending", signal=signal.Signals(number).name)
            stop.asked.set()


async def unless(stop: anyio.Event, work: Callable[[], Awaitable[T]]) -> T | None:
    """The result of `work`, or None when `stop` comes first."""
    found: T | None = None

    async def watch() -> None:
        await stop.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        found = await work()
        tasks.cancel_scope.cancel()
    return found


async def until_reached(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the homeserver answers; a start waits for one that is away."""
    patience, failures = Patience(), 0
    while True:
        try:
            return await ask()
        except (HomeserverUnreachable, RateLimited) as error:
            failures += 1
            told_s = error.retry_after if isinstance(error, RateLimited) else 0.0
            log.warning("matrix.waiting_for_homeserver", why=str(error), failures=failures)
            await anyio.sleep(max(told_s, patience.wait_s(failures)))
