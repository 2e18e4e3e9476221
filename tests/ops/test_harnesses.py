from bridge.ops.harnesses import find_installed, read_known


def test_every_known_harness_names_its_program_its_command_and_how_to_install_it() -> None:
    known = read_known()
    assert ["claude", "codex", "gemini", "opencode"] == [harness.name for harness in known]
    for harness in known:
        assert harness.program in harness.command
        assert harness.install.startswith("npm install -g ")


def test_those_whose_program_is_on_the_path_are_installed() -> None:
    found = find_installed(read_known(), {"gemini": "/usr/bin/gemini"}.get)
    assert ["gemini"] == [harness.name for harness in found]
