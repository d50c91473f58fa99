"""What the README and the docs show, runs."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from lgq.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALL = ["--tokens", "64", "--sizes", "32", "--repeats", "1"]
LONG = {"lgq bench quantizers": [*SMALL, "--quantizers", "fsq"], "lgq bench encode": SMALL}
"""Commands that take minutes as they stand: here they run with small numbers."""


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        pieces = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        name = page.relative_to(ROOT)
        found += [pytest.param(piece, id=f"{name}-{i}") for i, piece in enumerate(pieces)]
    return found


def commands() -> list[str]:
    lines = [line for block in blocks("bash") for line in block.values[0].splitlines()]
    return sorted({line.split("#")[0].split(">")[0].strip() for line in lines if line.strip()})


@pytest.mark.parametrize("code", blocks("python"))
def test_python_of_the_docs_runs(code, capsys):
    exec(compile(code, "docs", "exec"), {})


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_docs_run(command, capsys):
    program, *arguments = shlex.split(command)
    if program == "make":
        done = subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    elif program == "pip":
        named = [word for word in arguments if word not in ("install", "-c", "-e")]
        assert all((ROOT / word.split("[")[0]).exists() for word in named)
    else:
        assert program == "lgq", f"no way to run {command!r} is known: teach this test"
        main([*arguments, *LONG.get(" ".join([program, *arguments[:2]]), [])])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_docs_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_every_direct_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted += [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
    pinned = {
        line.split("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert {re.split(r"[<>=\[]", name)[0] for name in wanted} == pinned
