"""The documents name what there is: every key, every record, every command, every file."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import pytest

from bridge import cli, config
from bridge.core.model import Ending, Reason, Via
from bridge.store import records

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/configuration.md",
    "docs/history.md",
    "docs/login.md",
    "docs/verification.md",
)
SECTIONS = {
    "## At the top": config.Config,
    "## `[matrix]`": config.MatrixSection,
    "## `[agents.NAME]`": config.AgentSection,
}
SOCKET_METHOD = re.compile(r'case "([a-z]+\.[a-z]+|status)"|method == "([a-z.]+)"')
LATER: set[StrEnum] = {Via.EDITOR}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_rows(text: str) -> list[list[str]]:
    """The rows of the tables, cells without white space, heads left out."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"
    ]
    return [row for row in rows if row[0].startswith("`")]


@pytest.mark.parametrize(("title", "section"), SECTIONS.items())
def test_every_key_stands_in_its_section_with_meaning_default_and_example(
    title: str, section: type[config.Config]
) -> None:
    rows = read_rows(read("docs/configuration.md").partition(title + "\n")[2].partition("\n## ")[0])
    assert [row for row in rows if len(row) != 4 or not all(row)] == []
    assert {row[0].strip("`") for row in rows} == set(section.model_fields) - {"matrix", "agents"}


def test_every_example_can_be_used_as_it_stands(tmp_path: Path) -> None:
    text = read("docs/configuration.md")
    filled = [
        header + "\n" + "\n".join(f"{row[0].strip('`')} = {row[3].strip('`')}" for row in read_rows(part))
        for header, part in zip(("", "[matrix]", "[agents.demo]"), text.split("\n## ")[1:], strict=True)
    ]
    path = tmp_path / "config.toml"
    path.write_text("\n".join(filled))
    config.load(path)


def test_the_config_of_the_guide_can_be_used_as_it_stands(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", read("docs/by-hand.md"), re.DOTALL)
    path = tmp_path / "config.toml"
    path.write_text(block)
    assert config.load(path).warnings == ()


def test_the_keys_that_the_readme_gives_to_each_agent_can_be_used_as_they_stand(tmp_path: Path) -> None:
    agents = [line for line in read("README.md").splitlines() if "<br>" in line]
    assert len(agents) == 4
    for line in agents:
        keys = re.findall(r"`([a-z_]+ = .*?)`", line)
        path = tmp_path / "config.toml"
        path.write_text(read("config.example.toml").partition("[agents.")[0] + "[agents.a]\n" + "\n".join(keys))
        with path.open("a") as file:
            file.write('\nroom = "!r"\napprovers = ["@amy:hs"]\n')
        assert config.load(path).agents["a"].mode


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_linked_exists(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", read(document))
    here = (ROOT / document).parent
    assert [link for link in links if "://" not in link and not (here / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_script_that_is_named_exists(document: str) -> None:
    named = set(re.findall(r"\bscripts/[a-z-]+", read(document)))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_line_is_one_that_the_program_takes(document: str) -> None:
    """Each `acp-matrix-bridge …`, in a block or in the text, gets as far as the parser."""
    lines = re.findall(r"(?:(?<![/\w-])|bin/)acp-matrix-bridge ((?:--)?[a-z][^`\n#]*)", read(document))
    parser = cli.make_parser()
    for line in lines:
        words = line.split()
        try:
            parser.parse_args(words)
        except SystemExit as end:  # --version and --help, or a command whose arguments are left out in a sentence
            assert end.code == 0 or words == ["answer"], line  # noqa: PT017
    assert document != "README.md" or len(lines) > 10


def test_every_command_of_the_program_is_in_the_readme() -> None:
    text = read("README.md")
    (commands,) = [action.choices for action in cli.make_parser()._actions if action.dest == "act" or action.choices]
    assert commands is not None
    assert [name for name in commands if f"acp-matrix-bridge {name}" not in text and f"`{name}`" not in text] == []


def test_every_option_of_the_login_is_described() -> None:
    text = read("docs/login.md")
    (commands,) = [action.choices for action in cli.make_parser()._actions if action.dest == "act" or action.choices]
    assert commands is not None
    options = cast("dict[str, Any]", commands)["login"]._option_string_actions
    elsewhere = {"-h", "--help", "--config", "--debug", "--user", "--state-dir"}
    assert [option for option in options if option not in elsewhere and option not in text] == []


def test_every_type_of_record_is_described() -> None:
    rows = read_rows(read("docs/history.md"))
    assert set(records.TYPES.values()) <= {row[0].strip("`") for row in rows}


@pytest.mark.parametrize(("words", "later"), [(Ending, set[StrEnum]()), (Reason, set[StrEnum]()), (Via, LATER)])
def test_every_word_of_a_record_is_named(words: type[StrEnum], later: set[StrEnum]) -> None:
    text = read("docs/history.md")
    assert [word for word in words if word not in later and f"`{word}`" not in text] == []


def test_every_method_of_the_control_socket_is_described() -> None:
    source = read("bridge/ops/control.py")
    methods = {one or other for one, other in SOCKET_METHOD.findall(source)}
    assert len(methods) == 7
    assert methods <= {row[0].strip("`") for row in read_rows(read("docs/history.md"))}
