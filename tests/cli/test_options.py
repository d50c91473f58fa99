"""Options over all commands: one word has one meaning, yes and no, help that a newcomer can read."""

import re
from typing import get_args

import pytest

import lgq
from lgq.cli import COMMANDS, main, parse
from lgq.cli.options import options_of

SAMPLERS = ("sample", "inpaint", "evaluate", "train-generator")


def help_of(capsys: pytest.CaptureFixture[str], command: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_an_option_takes_the_same_kind_of_value_in_every_command():
    kinds: dict[str, set[object]] = {}
    for entry in COMMANDS.values():
        for option in options_of(entry.load()):
            if not option.positional:
                several = get_args(option.kind)[-1:] == (...,)
                kind = get_args(option.kind)[0] if several else option.kind
                kinds.setdefault(option.flag, set()).add(kind)
    assert {flag: found for flag, found in kinds.items() if len(found) > 1} == {}


def test_options_of_sampling_have_the_same_name_in_every_command_that_draws():
    for name in SAMPLERS:
        flags = {option.flag for option in options_of(COMMANDS[name].load())}
        assert flags >= {"--guidance", "--temperature", "--top-k", "--top-p", "--order"}, name
        assert ("--sampling.steps" in flags) == (name == "train-generator")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["train pocket-lgq", "train-generator pocket", "evaluate", "report"])
def test_help_fits_the_terminal(command, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lengths = [len(line) for line in help_of(capsys, command).splitlines()]
    assert 0.9 * width < max(lengths) <= width


def test_help_of_a_run_starts_with_what_a_newcomer_needs(capsys):
    text = help_of(capsys, "train pocket-lgq")
    basic, more = text.index("Basic options"), text.index("More options")
    for option in ("data", "out", "steps", "seed", "batch-size", "codebook-size", "learning-rate", "resume"):
        assert basic < text.index(f"  --{option} ") < more, option
    for option in ("weight-decay", "backbone.widths", "keep", "loss.l1"):
        assert text.index(f"  --{option} ") > more, option
    assert "usage: lgq train pocket-lgq --data DATA --out PATH [OPTIONS]" in text
    assert "Names: " not in text
    assert "Names: pocket-lgq, pocket-ibq, " in help_of(capsys, "train")


def test_help_says_of_every_option_without_a_value_that_it_has_none(capsys):
    text = " ".join(help_of(capsys, "shard").split())
    assert "None has no such limit. (default: none)" in text
    assert "None keeps their order. (default: none)" in text


def test_help_names_options_and_not_fields(capsys):
    text = " ".join(help_of(capsys, "train pocket-lgq").split())
    assert "all of them if --best-by is rfid" in text
    assert "or decay to --schedule.final along" in text
    assert "Multiply --loss.gan by" in text


def test_yes_and_no_can_both_be_said_and_are_in_the_help(capsys):
    command = ["train", "pocket-lgq", "--data", "d", "--out", "o"]
    assert parse([*command, "--channels-last"]).settings.channels_last
    assert not parse([*command, "--no-channels-last"]).settings.channels_last
    assert not parse([*command, "--no-compile"]).settings.compile
    text = " ".join(help_of(capsys, "train pocket-lgq").split())
    assert re.search(r"--channels-last, --no-channels-last Store .*? \(default: no\)", text)
    assert re.search(r"--compile, --no-compile Compile .*? \(default: no\)", text)


def test_every_option_of_yes_and_no_has_both_words(capsys):
    for name, entry in COMMANDS.items():
        text = help_of(capsys, name)
        for option in options_of(entry.load()):
            if option.kind is bool:
                assert f"  {option.flags[0]}, {option.flags[1]}" in text, (name, option.flag)


@pytest.mark.parametrize(
    "words",
    [
        "train --data d pocket-fsq --out o --backbone.widths 8 16",
        "train --data d --out o --backbone.widths 8 16 pocket-fsq",
        "train --data d --out o --no-compile pocket-fsq --backbone.widths 8 16",
        "train --data=d --out=o --backbone.widths 8 16 --seed 0 pocket-fsq",
        "train --backbone.widths 8 16 --quantizer-options levels=8 pocket-fsq --data d --out pocket-lgq",
    ],
)
def test_the_name_of_a_run_may_stand_anywhere(words):
    command = parse(words.split())
    assert (command.data, command.settings.quantizer) == ("d", "fsq")
    assert command.settings.backbone.widths == (8, 16)


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"lgq {lgq.__version__}\n")


@pytest.mark.parametrize("none", ["none", "None"])
def test_none_may_be_written_as_help_shows_it(none):
    command = parse(["train", "pocket-lgq", "--data", "d", "--out", "o", "--epochs", none, "--minutes=none"])
    assert command.settings.loop.epochs is None
    assert command.settings.loop.minutes is None
