"""constraints.txt pins every dependency; requirements.lock has their hashes, from any index."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"([a-z0-9-]+)==([^\s+]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def locked() -> dict[str, str]:
    return {name: version for name, version, _ in PINNED.findall((ROOT / "requirements.lock").read_text())}


def constrained() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_line_of_the_lock_is_a_version_with_its_hash():
    text = (ROOT / "requirements.lock").read_text()
    content = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    assert PINNED.sub("", content) == ""
    assert len(locked()) > 50


def test_the_lock_has_the_versions_of_the_constraints():
    assert {name: locked().get(name) for name in constrained()} == constrained()


def test_every_direct_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted += [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
    assert {re.split(r"[<>=\[]", name)[0] for name in wanted} == constrained().keys()


def test_the_lock_names_no_place_to_download_from():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=)", text, re.MULTILINE)
