"""What `verify` says and asks at the terminal.

Above it: the command line, and app, which feeds it. Below it: the standard streams. It takes plain values, and knows neither
Matrix nor the ledger; every text of others passes `core.safetext`.
"""

import os
import sys
import termios
from collections.abc import Collection, Sequence

import anyio

from bridge.core.model import JsonObject, UserId
from bridge.core.safetext import escape_line

PIECE_BYTES = 4096  # the longest line that a terminal gives
GROUP = 4  # a key is shown in groups of four, as clients show theirs
YES, NO = frozenset({"yes", "y"}), frozenset({"no", "n"})

_WHY = {
    "m.user": "it was cancelled",
    "m.timeout": "it took longer than ten minutes",
    "m.unknown_transaction": "the other client does not know of it",
    "m.unknown_method": "the two have no way of comparing in common",
    "m.unexpected_message": "a message came that did not belong there; two were perhaps begun at once",
    "m.key_mismatch": (
        "the keys are not those that the homeserver names, or the other side has no cross-signing identity"
    ),
    "m.user_mismatch": "the homeserver does not know the device that it was begun on, or could not be asked for it",
    "m.invalid_message": "a message could not be read",
    "m.accepted": "another device took it",
    "m.mismatched_commitment": "a key was exchanged on the way: somebody may sit in between",
    "m.mismatched_sas": "what was shown differs: somebody may sit in between, or another person's client was compared",
    "not_kept": "the ledger could not store it",
    "not_sent": "the homeserver did not take the bridge's message",
}


class Terminal:
    """The person at the bridge's machine."""

    def say(self, line: str) -> None:
        """A line, at once."""
        print(line, flush=True)  # noqa: T201 - the terminal is what this class is

    async def ask(self, question: str) -> str | None:
        """A line, typed after the question was shown; None when there is nobody to type one. May be cancelled.

        No thread reads: one that waits in `input` would keep the command from ending.
        """
        print(question, end="", flush=True)  # noqa: T201
        try:
            descriptor = sys.stdin.fileno()
            if os.isatty(descriptor):
                termios.tcflush(descriptor, termios.TCIFLUSH)  # a yes from before it was shown is none
            raw = b""
            while not raw.endswith(b"\n"):
                await anyio.wait_readable(descriptor)
                piece = os.read(descriptor, 1)  # one question's line and no more: the next belongs to the next question
                if not piece:
                    return None
                raw = (raw + piece)[-PIECE_BYTES:]
        except (OSError, ValueError):  # no descriptor, or one that cannot be waited for, such as /dev/null
            return None
        return raw.decode(errors="replace").strip()


async def ask_whether_same(
    terminal: Terminal, user: UserId, device_id: str, emoji: Sequence[tuple[str, str]], decimals: Sequence[int]
) -> bool | None:
    """Show what is to be compared, and ask until there is a yes or a no; None when nobody is there to say either."""
    terminal.say("")
    terminal.say(f"Compare with what the client of {escape_line(user)} shows (device {escape_line(device_id)}):")
    terminal.say("")
    for picture, name in emoji:
        terminal.say(f"    {picture}  {name}")
    terminal.say(f"    {'or the numbers  ' if emoji else ''}{'  '.join(map(str, decimals))}")
    terminal.say("")
    while True:
        said = await terminal.ask("Do they match? Say yes only if all of them do (yes/no): ")
        if said is None:
            terminal.say("")
            return None
        word = said.casefold()
        if word in YES | NO:
            return word in YES


def show_pinned(user: UserId, master: str) -> str:
    """What a success means."""
    return (
        f"{escape_line(user)} is verified. Their identity is now pinned: {show_key(master)}\n"
        'Agents with trust = "pinned" take answers only from devices that this identity has signed.'
    )


def show_failure(user: UserId, code: str, *, by_us: bool) -> str:
    """Why nothing was pinned."""
    why = _WHY.get(code, f"the other client gave the reason {escape_line(code[:100])}")
    ended = (
        "" if code in {"not_kept", "not_sent"} else " The bridge ended it." if by_us else " The other client ended it."
    )
    return f"{escape_line(user)} was not verified: {why}.{ended} Nothing was pinned by this."


def show_key(key: str) -> str:
    """A public key as people compare it."""
    return escape_line(" ".join(key[at : at + GROUP] for at in range(0, len(key), GROUP)))


def list_pins(approvers: Collection[UserId], pins: Sequence[tuple[UserId, str]]) -> list[JsonObject]:
    """Every approver and whoever else is pinned, in order, as `--json` prints them."""
    known = dict(pins)
    return [
        {"user_id": user, "approver": user in approvers, "master_key": known.get(user)}
        for user in sorted({*approvers, *known})
    ]


def show_pin(line: JsonObject) -> str:
    """One of them for people."""
    key = line["master_key"]
    state = f"pinned      {show_key(key)}" if isinstance(key, str) else "not pinned"
    return f"{escape_line(str(line['user_id']))}  {state}{'' if line['approver'] else '  (no approver any more)'}"
