"""The program around the commands: what is loaded, how help reads, and what becomes of errors."""

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import TypeVar, get_type_hints

import pytest
from command_line import TINY_TOKENIZER, lgq, mistake
from PIL import Image

from lgq.cli import COMMANDS, main
from lgq.maskgit import MaskGIT
from lgq.models.transformer import TransformerSettings
from lgq.tokenizer import Tokenizer

LOADED = "import sys; from lgq.cli import main\ntry: main({arguments!r})\nfinally: print(*sys.modules)"


def run_alone(*arguments: object) -> tuple[str, list[str]]:
    """Run a command in a process of its own; return what it prints and the modules that it loads."""
    code = LOADED.format(arguments=list(map(str, arguments)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *printed, modules = done.stdout.splitlines()
    return "\n".join(printed), modules.split()


def test_a_command_loads_what_it_needs(tmp_path):
    def count(*arguments: object) -> int:
        return sum(module.startswith("lgq.") for module in run_alone(*arguments)[1])

    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (20, 20)).save(photos / "photo.png")
    train = ["train", "pocket-lgq", "--data", photos, "--steps", 2, "--out", tmp_path / "run"]
    assert count(*train, *TINY_TOKENIZER) <= 90
    tokenizer, out = Tokenizer.from_pretrained(tmp_path / "run" / "last"), tmp_path / "generator"
    small = TransformerSettings(layers=1, width=8, heads=1, hidden=8)
    MaskGIT(tokenizer, image_size=16, classes=["a"], transformer=small).save_pretrained(out)
    assert count("sample", out, "--out", tmp_path / "samples.png", "--count", 1) <= 65


def test_the_list_of_commands_needs_no_torch():
    printed, modules = run_alone("--help")
    assert "torch" not in modules
    assert all(name in printed for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_describes_a_command_and_every_field(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    command = COMMANDS[name].load()
    assert command.__doc__.splitlines()[0][:40] in shown
    for place, text in helps_of(command):
        assert text, f"{place} has no help"
        assert text[0].isupper() or text[0] in "`'", f"{place}: {text}"
        assert text.split()[0] not in ("Of", "That", "Which", "Who", "Whose"), f"{place}: {text}"


def helps_of(settings: type, path: str = "") -> list[tuple[str, str]]:
    """Collect the fields of a dataclass and of those inside it, with the docstring of each."""
    helps, hints, docstrings = [], get_type_hints(settings), field_docstrings(settings)
    for field in fields(settings):
        hint = hints[field.name]
        if isinstance(hint, TypeVar):
            (hint,) = settings.__orig_bases__[0].__args__
        if is_dataclass(hint):
            helps += helps_of(hint, f"{path}{field.name}.")
        else:
            helps.append((f"{path}{field.name}", docstrings.get(field.name, "")))
    return helps


def field_docstrings(settings: type) -> dict[str, str]:
    docstrings = {}
    for parent in reversed(settings.__mro__[:-1]):
        if not is_dataclass(parent):
            continue
        (source,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        for field, text in pairwise(source.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                docstrings[field.target.id] = text.value.value
    return docstrings


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("trian pocket-lgq", "unknown command 'trian': did you mean train?"),
        ("weights fech", "did you mean weights fetch?"),
        ("train poket-lgq --data d --out o", "unknown run 'poket-lgq': did you mean 'pocket-lgq'?"),
        ("train pocket --data d --out o", "unknown run 'pocket': choose from pocket-lgq, pocket-ibq, "),
        ("train --data d --out o", "lgq train needs the name of a run, one of pocket-lgq, pocket-ibq, "),
        ("train --data d --out pocket-lgq", "lgq train needs the name of a run, one of pocket-lgq"),
        ("train-generator", "needs the name of a run, one of pocket, imagenet256, smoke"),
        ("train-generator foo", "unknown generator 'foo': choose from pocket, imagenet256, smoke"),
        (
            "train pocket-mine --data d --out o",
            "unknown quantizer 'mine': import the module that registers it",
        ),
        (
            "train pocket-lgq --data d --out o --stepz 3",
            "has no option --stepz: did you mean --steps? See lgq train pocket-lgq --help.",
        ),
        (
            "train-generator pocket --tokens t --out o --layers 2",
            "has no option --layers: did you mean --transformer.layers?",
        ),
        ("sample GEN --data d", "lgq sample has no option --data; lgq view, lgq train, lgq evaluate, "),
        ("sample GEN --out s.png --zzz d", "lgq sample has no option --zzz: see lgq sample --help."),
        ("train pocket-lgq --data d --out o --steps many", "--steps takes a whole number, got 'many'"),
        ("train pocket-lgq --data d", "lgq train pocket-lgq needs --out PATH"),
        ("train pocket-lgq --data d --out o --precision f17", "invalid choice 'f17'"),
        (
            "train pocket-lgq --data d --out o --backbone.blocks 0",
            "lgq: --backbone.blocks must be at least 1, got 0",
        ),
        ("train --data d pocket-lgq --out o --codebook-size 0", "lgq: --codebook-size must be at least 1"),
        ("train --data=d --no-compile pocket-lgq --out o --steps 0", "lgq: --steps must be at least 1"),
        ("train --backbone.widths 8 16 pocket-lgq --data d --out o --seed -1", "lgq: --seed must lie in"),
        ("train pocket-lgq --data d --out o --betas 2 0", "lgq: --betas must lie in 0..1, got 2"),
        ("train pocket-lgq --data d --out o --quantizer-options x", "of the form NAME=VALUE, got 'x'"),
        ("train-generator pocket --tokens t --out o --top-p 2", "lgq: --top-p must be above 0"),
        (
            "train-generator pocket --tokens t --out o --sampling.steps 0",
            "--sampling.steps must be at least 1",
        ),
        (
            "train-generator pocket --tokens t --out o --transformer.heads 7",
            "--transformer.heads must divide --transformer.width, got 7 heads",
        ),
        ("evaluate GEN --tokens t --steps 0", "lgq: --steps must be at least 1, got 0"),
        ("sample GEN --out s.png --steps 0", "lgq: --steps must be at least 1, got 0"),
        ("sample GEN --out s.png b c", "unrecognized options: b, c"),
    ],
)
def test_wrong_words_are_named_in_one_line(words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert line in mistake(capsys, *words.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError, OSError, TypeError, RuntimeError])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("lgq.cli.images.reconstruct", ["reconstruct", "run", "image.png"]),
        ("lgq.quantizers.LGQ.forward", ["train", "pocket-lgq", "--data", "sample", *TINY_TOKENIZER]),
    ],
)
def test_a_bug_keeps_its_traceback(error, place, words, monkeypatch, tmp_path):
    def bug(*_, **__):
        raise error("a bug")

    monkeypatch.setattr(place, bug)
    with pytest.raises(error, match="a bug"):
        lgq(*words, "--out", tmp_path)


def test_debugging_shows_the_traceback_of_every_error(monkeypatch, capsys):
    monkeypatch.setenv("LGQ_DEBUG", "1")
    with pytest.raises(SystemExit) as stop:
        lgq("train", "pocket-lgq", "--data", "nowhere", "--out", "o")
    errors = capsys.readouterr().err
    assert stop.value.code == 2
    assert "Traceback (most recent call last)" in errors
    assert errors.splitlines()[-1].startswith("lgq: nowhere does not exist")


def test_ctrl_c_says_whether_the_command_continues(monkeypatch, capsys, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lgq.cli.images.encode", interrupted)
    monkeypatch.setattr("lgq.cli.images.reconstruct", interrupted)
    for words, code in ((["encode", "run", "--data", "sample"], 75), (["reconstruct", "run", "a.png"], 130)):
        with pytest.raises(SystemExit) as stop:
            lgq(*words, "--out", tmp_path)
        assert stop.value.code == code
        assert ("the same command continues" in capsys.readouterr().err) == (code == 75)


@pytest.mark.parametrize("module", ["lgq", "lgq.cli"])
def test_modules_run_as_the_command(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("lgq ")


def test_an_output_that_is_closed_early_is_no_error(tmp_path):
    command = f"{sys.executable} -m lgq weights status | true; exit ${{PIPESTATUS[0]}}"
    environment = os.environ | {"LGQ_CACHE": str(tmp_path)}
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
