import pytest

from bench.__main__ import COMMANDS, main


def test_usage_names_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert main(["nonsense"]) == 2


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out


@pytest.mark.parametrize("bad", [["--requests", "1"], ["--loads", "0"], ["--start", "-1"]])
def test_bad_numbers_are_refused(bad, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["live", *bad])
    assert ended.value.code == 2
    assert bad[0] in capsys.readouterr().err


def test_a_missing_trace_is_one_line(capsys):
    assert main(["demo", "--trace", "nowhere.jsonl"]) == 1
    assert capsys.readouterr().err.startswith("warmroute bench: nowhere.jsonl: neither")
