"""What somebody is told whose message does not count because of how it came: what is wrong, and what to do in their client."""

from dataclasses import replace

import pytest

from bridge.core.messages import DeviceRefused, Exposed, NeedsNumber, Prompt, SendAgain
from bridge.core.model import UserId
from bridge.matrix.doubts import Doubtful, warn
from bridge.matrix.prompt import compose
from bridge.matrix.render import HOW_TO_ANSWER
from tests.matrix.asked import AMY, ANSWER, REQUEST

STRICT = replace(REQUEST, strict=True)

WARNINGS: list[tuple[Doubtful, str]] = [
    (
        DeviceRefused(AMY, ANSWER, "PHONE"),
        (
            "@amy:hs, this message came from a session that you have not verified (PHONE), so it does not count. Open that"
            " client's settings, verify this session with your other device or recovery key, then answer again."
        ),
    ),
    (
        DeviceRefused(AMY, ANSWER, None),
        (
            "@amy:hs, this message came from no session of your account that is known, so it does not count. Please sign in"
            " again in that client, verify it, then send the message again."
        ),
    ),
    (
        DeviceRefused(AMY, ANSWER, "PHONE", unpinned=True),
        (
            "@amy:hs, your identity has not been verified with this bridge yet, so this does not count. Ask whoever runs the"
            " bridge to compare it with you: acp-matrix-bridge verify @amy:hs"
        ),
    ),
    (
        DeviceRefused(AMY, ANSWER, "PHONE", identity_changed=True),
        (
            "@amy:hs, your identity is not the one that was verified with this bridge, so nothing you send counts. If you"
            " have reset it, ask whoever runs the bridge to compare it with you again: acp-matrix-bridge verify @amy:hs"
        ),
    ),
    (
        NeedsNumber(STRICT, AMY, ANSWER),
        (
            "@amy:hs, an answer to #12 counts only with its number inside the encrypted message. Nothing has been approved."
            " Reply with #12 and the number, for example: #12 1"
        ),
    ),
    (
        Exposed(AMY, ANSWER),
        (
            "@amy:hs, this message came unencrypted into an encrypted room, so it does not count. Please send it again from"
            " a client that encrypts."
        ),
    ),
    (
        SendAgain(AMY, ANSWER, withheld=False),
        "@amy:hs, your message could not be decrypted here, so it does not count. Please send it again.",
    ),
    (
        SendAgain(AMY, ANSWER, withheld=True),
        (
            "@amy:hs, your message could not be read here, because your client does not give its key to this bridge. Verify"
            " the bridge in that client, or let it encrypt for unverified devices too, then send it again."
        ),
    ),
]


@pytest.mark.parametrize(("message", "text"), WARNINGS)
def test_a_warning_reads(message: Doubtful, text: str) -> None:
    assert text == warn(message)


@pytest.mark.parametrize(("message", "text"), WARNINGS)
def test_a_warning_replies_to_the_message_and_rings_its_sender(message: Doubtful, text: str) -> None:
    (envelope,) = compose(message)
    assert {
        "msgtype": "m.text",
        "body": text,
        "m.mentions": {"user_ids": [AMY]},
        "m.relates_to": {"m.in_reply_to": {"event_id": ANSWER}},
    }.items() <= envelope.content.items()


def test_what_a_server_names_a_user_or_a_device_stays_in_its_line() -> None:
    odd = warn(DeviceRefused(UserId("@a\nb:hs"), ANSWER, "X\u202e\n1. Allow"))
    assert '"@a\\nb:hs"' in odd
    assert '("X\\u202e\\n1. Allow")' in odd


def test_a_strict_prompt_says_how_to_answer_it_in_place_of_the_usual_sentence() -> None:
    (envelope,) = compose(Prompt(STRICT))
    body = str(envelope.content["body"])
    assert body.endswith("\n\nReply with #12 and the number, for example: #12 1")
    assert HOW_TO_ANSWER not in body
