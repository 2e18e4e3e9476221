import re
from pathlib import Path

import pytest

from bridge import config

EXAMPLE = Path(__file__).parents[1] / "config.example.toml"
COMMENTED = [line for line in EXAMPLE.read_text().splitlines() if re.match(r"# [a-z_]+ = ", line)]


def test_the_example_loads_as_it_stands() -> None:
    assert config.load(EXAMPLE).warnings == ()


@pytest.mark.parametrize(
    ("header", "section"),
    [("", config.Config), ("[matrix]", config.MatrixSection), ("[agents.claude]", config.AgentSection)],
)
def test_the_example_names_every_key_of_a_section(header: str, section: type[config.Config]) -> None:
    text = EXAMPLE.read_text()
    keys = re.findall(r"^(?:# )?([a-z_]+) = ", text[text.index(header) :], re.MULTILINE)
    assert set(section.model_fields) - {"matrix", "agents"} <= set(keys)


@pytest.mark.parametrize("line", COMMENTED)
def test_a_key_that_is_commented_out_can_be_used_as_it_stands(line: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(EXAMPLE.read_text().replace(line, line.removeprefix("# ")))
    config.load(path)
    assert path.read_text() != EXAMPLE.read_text()


def test_what_is_said_to_be_the_default_is_the_default(tmp_path: Path) -> None:
    """A commented key stands with its default, but for those that have none to show."""
    examples = ("access_token_file", "password_file", "env", "users", "auth_method", "listen")
    shown = [line.removeprefix("# ") for line in COMMENTED if line.split()[1] not in examples]
    path = tmp_path / "config.toml"
    text = EXAMPLE.read_text()
    for line in shown:
        text = text.replace(f"# {line}", line)
    path.write_text(text)
    assert len(shown) == 11
    assert config.load(EXAMPLE) == config.load(path)
