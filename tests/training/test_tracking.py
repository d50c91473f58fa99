"""Weights & Biases gets a run's records, and cannot end the run."""

import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from identity import assert_identical

from lgq.errors import LGQError
from lgq.training.checkpoint import capture_random_state
from lgq.training.journal import WandbTracker, open_journal, read_records

pytestmark = pytest.mark.usefixtures("_no_tensorboard")


class FakeRun:
    """A W&B run that fails from its `good`-th call on."""

    def __init__(self, good: int = 100):
        self.good, self.logged = good, []

    def define_metric(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log(self, values: dict[str, float]) -> None:
        self._call(values)

    def finish(self, exit_code: int) -> None:
        self._call(exit_code)

    def _call(self, what: Any) -> None:
        self.good -= 1
        if self.good < 0:
            raise ConnectionError("the cable is cut")
        self.logged.append(what)


def use(monkeypatch: pytest.MonkeyPatch, run: FakeRun | Exception) -> list[dict[str, Any]]:
    """Put a fake in the place of the package; returns what it is started with."""
    started: list[dict[str, Any]] = []

    def init(**options: Any) -> FakeRun:
        started.append(options)
        if isinstance(run, Exception):
            raise run
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    return started


def test_an_offline_run_has_the_records_and_draws_no_random_numbers(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    before = capture_random_state()
    for step in (1, 2):
        with (
            WandbTracker(tmp_path, "pictures", {"seed": 7}, resumed=step > 1) as tracker,
            open_journal(tmp_path, step=step - 1, tracker=tracker) as journal,
        ):
            journal.record(step, "validation", {"psnr": 20.5}, seconds=1.0)
    after = capture_random_state()
    assert_identical(
        {"numpy": after["numpy"], "torch": after["torch"]}, {k: before[k] for k in ("numpy", "torch")}
    )
    wandb.teardown()  # its own process writes the files, at the latest when it ends
    kept = json.loads((tmp_path / "wandb.json").read_text())
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{kept['id']}.wandb"] * 2
    for file in files:
        assert all(word in file.read_bytes() for word in (b"pictures", b"validation/psnr", b"20.5"))
    assert [record["step"] for record in read_records(tmp_path)] == [1, 2]


def test_a_record_carries_its_step_and_the_names_of_its_split(tmp_path, monkeypatch):
    fake = FakeRun()
    started = use(monkeypatch, fake)
    (tmp_path / "photos").mkdir()
    with WandbTracker(tmp_path / "photos", "me/pictures", {"seed": 7}, resumed=False) as tracker:
        tracker.record(3, "train", {"l1": 0.5})
    assert fake.logged == [{"step": 3, "train/l1": 0.5}, 0]
    (options,) = started
    chosen = {name: options[name] for name in ("entity", "project", "name", "config", "resume")}
    expected = {"entity": "me", "project": "pictures", "name": "photos", "config": {"seed": 7}}
    assert chosen == expected | {"resume": "allow"}


def test_the_id_belongs_to_the_directory_and_the_project(tmp_path, monkeypatch):
    started = use(monkeypatch, FakeRun())
    for project in ("a", "a", "b", "a"):
        WandbTracker(tmp_path, project, {}, resumed=True)
    first, second, other, _ = (options["id"] for options in started)
    assert first == second != other


def test_a_run_that_failed_is_told_so(tmp_path, monkeypatch):
    fake = FakeRun()
    use(monkeypatch, fake)
    with pytest.raises(RuntimeError), WandbTracker(tmp_path, "a", {}, resumed=False):
        raise RuntimeError
    assert fake.logged == [1]


@pytest.mark.parametrize("good", [0, 1, 2])
def test_what_fails_after_the_start_is_one_warning_and_the_run_goes_on(good, tmp_path, monkeypatch, caplog):
    use(monkeypatch, FakeRun(good))
    with (
        caplog.at_level(logging.WARNING),
        WandbTracker(tmp_path, "a", {}, resumed=False) as tracker,
        open_journal(tmp_path, step=0, tracker=tracker) as journal,
    ):
        for step in (1, 2):
            journal.record(step, "train", {"l1": 0.5}, seconds=1.0)
    assert len(read_records(tmp_path)) == 2
    assert [record.message for record in caplog.records] == [
        "Weights & Biases failed, the run continues without it: the cable is cut"
    ]


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(LGQError, match=r"wandb='a' needs a package .*: pip install 'lgq\[wandb\]'"):
        WandbTracker(tmp_path, "a", {}, resumed=True)


def test_a_new_run_is_refused_where_it_cannot_start(tmp_path, monkeypatch):
    use(monkeypatch, ConnectionError("no network"))
    with pytest.raises(LGQError, match=r"does not start: no network; .*WANDB_MODE=offline"):
        WandbTracker(tmp_path, "a", {}, resumed=False)


def test_a_resumed_run_goes_on_where_it_cannot_start(tmp_path, monkeypatch, caplog):
    use(monkeypatch, ConnectionError("no network"))
    with WandbTracker(tmp_path, "a", {}, resumed=True) as tracker:
        tracker.record(1, "train", {"l1": 0.5})
    assert "does not start, the run continues without it: no network" in caplog.text
