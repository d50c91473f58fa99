"""The commit in a record: that of the checkout that the package is run from."""

import subprocess
from pathlib import Path

import pytest

from lgq.training.run_directory import commit_of


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
