"""The short form of `scripts/test-clients`: one real client in an encrypted room, in the two ways that people answer most."""

from pathlib import Path

import pytest

from bridge.demo.homeserver import Homeserver
from tests.clients.javascript import Javascript
from tests.clients.jsperson import js_person
from tests.clients.trials import open_scene, try_surface


@pytest.mark.anyio
async def test_matrix_js_sdk_answers_with_text_and_with_a_reaction(
    js: Javascript, synapse: Homeserver, tmp_path: Path
) -> None:
    you, bot = synapse.register("you-js"), synapse.register("bridge-js")
    async with js_person(js, synapse.base_url, you) as person:
        await person.do("cross_sign")
        async with open_scene(tmp_path, synapse, bot, person) as scene:
            for surface in ("text", "reaction"):
                trial = await try_surface(scene, surface)
                assert (trial.why, trial.passed) == ("", True)
                assert trial.ending is not None
                assert "answered:" in trial.ending.text
