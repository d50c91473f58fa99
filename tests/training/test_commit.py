"""The commit in a record, that of the checkout that the package is run from, and the hash of its source."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import lgq
from lgq.training.run_directory import commit_of, describe_environment, source_hash


def git(directory: Path, *words: str) -> str:
    options = ["-c", "user.name=a", "-c", "user.email=a@b"]
    result = subprocess.run(
        ["git", *options, *words], cwd=directory, check=True, capture_output=True, text=True
    )
    return result.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main", "checkout")
    git(tmp_path / "checkout", "commit", "-q", "--allow-empty", "-m", "first")
    return tmp_path / "checkout"


def test_the_commit_is_read_without_git(checkout, monkeypatch):
    expected = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "")
    assert commit_of(checkout) == expected


def test_packed_refs_worktrees_and_detached_heads_are_read(checkout, tmp_path):
    expected = git(checkout, "rev-parse", "HEAD")
    git(checkout, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "side")
    git(checkout, "pack-refs", "--all")
    assert commit_of(checkout) == commit_of(tmp_path / "tree") == expected
    git(checkout, "checkout", "-q", "--detach")
    assert commit_of(checkout) == expected


def test_an_installed_package_has_no_commit_though_a_checkout_is_around_it(checkout):
    package = checkout / "site-packages"
    package.mkdir()
    assert commit_of(package) is None
    (package / ".git").write_text("gitdir: nowhere\n")
    assert commit_of(package) is None


PACKAGE = Path(lgq.__file__).parent


def test_every_record_has_the_hash_of_the_source_and_a_copy_elsewhere_has_the_same(tmp_path):
    recorded = describe_environment(0, torch.device("cpu"))["source"]
    assert re.fullmatch("[0-9a-f]{12}", recorded)
    copy = tmp_path / "site-packages" / "lgq"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "runs.cpython-311.pyc").write_bytes(b"compiled")
    assert source_hash(copy) == source_hash(PACKAGE) == recorded


@pytest.mark.parametrize("change", ["edit", "rename", "move", "add"])
def test_other_code_has_another_hash(tmp_path, change):
    for name in ("before", "after"):
        (tmp_path / name / "ops").mkdir(parents=True)
        (tmp_path / name / "ops" / "a.py").write_text("x = 1\n")
        (tmp_path / name / "ops" / "b.c").write_text("int x;\n")
    after = tmp_path / "after"
    if change == "edit":
        (after / "ops" / "b.c").write_text("int y;\n")
    elif change == "rename":
        (after / "ops" / "a.py").rename(after / "ops" / "c.py")
    elif change == "move":
        (after / "ops" / "a.py").rename(after / "a.py")
    else:
        (after / "page.js").write_text("")
    assert source_hash(after) != source_hash(tmp_path / "before")
