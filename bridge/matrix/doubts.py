"""What people are told when a message of theirs does not count because of how it came, and what to do about it in their client.

Above it: render. Below it: size, safetext and the messages of core. Text only: one or two plain sentences, for somebody who
has never heard of keys.
"""

from typing import TypeAlias

from bridge.core.messages import DeviceRefused, Exposed, NeedsNumber, SendAgain
from bridge.core.model import Request
from bridge.core.replies import word_to_confirm
from bridge.core.safetext import cut_line, escape_line
from bridge.matrix.size import LINE_CHARACTERS

Doubtful: TypeAlias = DeviceRefused | NeedsNumber | Exposed | SendAgain
"""Each replies to the message in question and rings its sender, who alone can do something about it."""


def warn(message: Doubtful) -> str:
    """Why it does not count, and what its sender can do."""
    who = _in_a_line(message.sender)
    match message:
        case DeviceRefused():
            return f"{who}, {_tell_refused(message, who)}"
        case NeedsNumber(request=request):
            return (
                f"{who}, an answer to #{request.number} counts only with its number inside the encrypted message."
                f" Nothing has been approved. {tell_how(request)}"
            )
        case Exposed():
            return (
                f"{who}, this message came unencrypted into an encrypted room, so it does not count. Please send it again"
                " from a client that encrypts."
            )
        case SendAgain(withheld=True):
            return (
                f"{who}, your message could not be read here, because your client does not give its key to this bridge."
                " Verify the bridge in that client, or let it encrypt for unverified devices too, then send it again."
            )
        case SendAgain():
            return f"{who}, your message could not be decrypted here, so it does not count. Please send it again."


def tell_how(request: Request) -> str:
    """How a request is answered where only its number inside the encrypted text counts."""
    return f"Reply with #{request.number} and the number, for example: #{request.number} 1"


def tell_how_to_confirm(request: Request) -> str:
    """What a reply to the question of rule 10 must say."""
    if request.strict:
        word = f"#{request.number} {word_to_confirm(request.options)}"
        return f"reply to this message with: {word}. The option's number or name and reactions do not count here."
    return (
        "reply to this message with the option's whole name, or with the word confirm. Numbers and reactions do not count"
        " here."
    )


def _tell_refused(message: DeviceRefused, who: str) -> str:
    if message.identity_changed:
        return (
            "your identity is not the one that was verified with this bridge, so nothing you send counts. If you have reset"
            f" it, ask whoever runs the bridge to compare it with you again: acp-matrix-bridge verify {who}"
        )
    if message.unpinned:
        return (
            "your identity has not been verified with this bridge yet, so this does not count. Ask whoever runs the bridge"
            f" to compare it with you: acp-matrix-bridge verify {who}"
        )
    if message.device_id is None:
        return (
            "this message came from no session of your account that is known, so it does not count. Please sign in again in"
            " that client, verify it, then send the message again."
        )
    return (
        f"this message came from a session that you have not verified ({_in_a_line(message.device_id)}), so it does not"
        " count. Open that client's settings, verify this session with your other device or recovery key, then answer"
        " again."
    )


def _in_a_line(text: str) -> str:
    return cut_line(escape_line(text), LINE_CHARACTERS).text
