"""`check`, as an operator runs it beside the bridge of a stage.

Above it: steps. Below it: the real command, and the stage. It knows no case.
"""

import contextlib
import io

from bridge.app.inspection import inspect
from bridge.config import load
from bridge.ops.credentials import Credentials, write_credentials
from tests.cases.life import BOT, ROOM
from tests.cases.stage import Stage

CONFIG = """
state_dir = "{state_dir}"
[matrix]
homeserver = "{homeserver}"
user_id = "{bot}"
[agents.a]
command = ["no-such-agent"]
room = "{room}"
approvers = ["@alice:ex.org", "@bob:ex.org"]
"""


async def check(stage: Stage) -> str:
    """What it prints."""
    path = stage.folder / "config.toml"
    path.write_text(CONFIG.format(state_dir=stage.state_dir, homeserver=stage.homeserver.url, bot=BOT, room=ROOM))
    config = load(path)
    write_credentials(config.saved_token_file, Credentials(access_token=stage.homeserver.token))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        await inspect(config, path)
    return said.getvalue()
