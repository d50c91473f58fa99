"""Records survive a killed process, a resumed run has none of later steps, and W&B never ends a run."""

import json
import logging
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import tiny_generator
import tiny_run
import torch
from faulty_disk import FaultyDisk
from identity import assert_identical
from PIL import Image

from lgq.data.transforms import to_pixels
from lgq.errors import LGQError
from lgq.training.checkpoint import capture_random_state
from lgq.training.journal import METRICS, TENSORBOARD, WandbTracker, open_journal, read_records
from lgq.training.watch import Finding

GRADIENT = torch.linspace(-1, 1, 3 * 4 * 6).view(3, 4, 6)
COLLAPSE = Finding("few_codes", "few codes are used")


def record_steps(run: Path, steps: range, *, after: int = 0) -> None:
    with open_journal(run, step=after) as journal:
        for step in steps:
            journal.record(step, "train", {"l1": step / 10}, seconds=1.5 * step)


def steps_of(run: Path) -> list[int]:
    return [record["step"] for record in read_records(run)]


def test_a_record_is_a_line_that_is_written_at_once_with_null_for_nan(tmp_path):
    assert read_records(tmp_path) == []
    values = {"psnr": 20.5, "ssim": float("inf"), "l1": float("nan")}
    with open_journal(tmp_path, step=0) as journal:
        journal.record(3, "validation", values, seconds=7.0, best=True)
        (line,) = (tmp_path / METRICS).read_text().splitlines()
    finite = {"psnr": 20.5, "ssim": None, "l1": None}
    expected = {"step": 3, "split": "validation", "seconds": 7.0, "values": finite, "best": True}
    assert json.loads(line) == expected


@pytest.mark.parametrize(("after", "left"), [(0, []), (4, [1, 2, 3, 4]), (7, list(range(1, 8)))])
def test_records_after_the_resumed_step_are_dropped_and_others_not_rewritten(tmp_path, after, left):
    record_steps(tmp_path, range(1, 8))
    before = (tmp_path / METRICS).stat().st_ino
    record_steps(tmp_path, range(after + 1, after + 3), after=after)
    assert steps_of(tmp_path) == [*left, after + 1, after + 2]
    assert ((tmp_path / METRICS).stat().st_ino == before) == (after == 7)


@pytest.mark.parametrize("torn", [b"{", b'{"step": 3', b'{"step": 3}', b"\x00\x00\n", b"7\n"])
def test_a_torn_last_line_is_dropped(tmp_path, torn):
    record_steps(tmp_path, range(1, 3))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(torn)
    assert steps_of(tmp_path) == [1, 2]
    record_steps(tmp_path, range(3, 4), after=2)
    assert steps_of(tmp_path) == [1, 2, 3]
    assert torn not in (tmp_path / METRICS).read_bytes().splitlines()


def test_a_process_killed_while_it_drops_records_leaves_them_all_or_the_kept_ones(tmp_path, monkeypatch):
    # Events go through other calls than the journal's own, and are not the matter here.
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", MagicMock())
    lines = [b'{"step": %d}\n' % step for step in range(1, 5)]

    def left_by(disk: FaultyDisk) -> list[int]:
        (tmp_path / METRICS).write_bytes(b"".join(lines))
        with disk.in_use():
            record_steps(tmp_path, range(0), after=2)
        return steps_of(tmp_path)

    healthy = FaultyDisk()
    assert left_by(healthy) == [1, 2]
    left = [left_by(FaultyDisk("killed", at)) for at in range(len(healthy.calls))]
    assert all(steps in ([1, 2, 3, 4], [1, 2]) for steps in left)
    assert left[0] == [1, 2, 3, 4]
    assert left[-1] == [1, 2]


def test_tensorboard_shows_the_same_values(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record_steps(tmp_path, range(1, 5))
    record_steps(tmp_path, range(3, 4), after=2)
    board = EventAccumulator(str(tmp_path / TENSORBOARD)).Reload()
    scalars = [(event.step, round(event.value, 6)) for event in board.Scalars("train/l1")]
    assert scalars == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_tensorboard_shows_pictures_and_warnings(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_journal(tmp_path, step=0) as journal:
        journal.show(3, "validation", {"reconstructions": GRADIENT})
        journal.warn(4, COLLAPSE, seconds=1.0)
    board = EventAccumulator(str(tmp_path / TENSORBOARD)).Reload()
    (picture,) = board.Images("validation/reconstructions")
    assert picture.step == 3
    assert np.array_equal(np.asarray(Image.open(BytesIO(picture.encoded_image_string))), to_pixels(GRADIENT))
    (warning,) = board.Tensors("warning/few_codes/text_summary")
    assert (warning.step, warning.tensor_proto.string_val[0]) == (4, b"few codes are used")


def test_tensorboard_has_the_pictures_that_validations_write(photos, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny_run.train(tiny_run.TINY, photos, tmp_path / "run")
    tiny_generator.train(
        tiny_generator.TINY, tiny_generator.draw_tokens(tmp_path / "tokens"), tmp_path / "generator"
    )
    for run, names in (("run", {"reconstructions", "usage"}), ("generator", {"samples"})):
        board = EventAccumulator(str(tmp_path / run / TENSORBOARD)).Reload()
        assert set(board.Tags()["images"]) == {f"validation/{name}" for name in names}
        for event in board.Images(f"validation/{min(names)}"):
            written = Image.open(tmp_path / run / "images" / f"step-{event.step:06d}.png")
            shown = Image.open(BytesIO(event.encoded_image_string))
            assert np.array_equal(np.asarray(shown), np.asarray(written))
        assert [event.step for event in board.Images(f"validation/{max(names)}")] == [3, 6]


def test_a_warning_is_a_record_with_its_cause(tmp_path):
    with open_journal(tmp_path, step=0) as journal:
        journal.warn(4, COLLAPSE, seconds=1.0)
    (record,) = read_records(tmp_path)
    notes = {"cause": "few_codes", "message": "few codes are used"}
    assert record == {"step": 4, "split": "warning", "seconds": 1.0, "values": {}, **notes}


@pytest.mark.parametrize("damaged", [b'["step": 1}\n', b"3\n", b'{"step": "1"}\n', b"[" * 100_000 + b"\n"])
def test_a_damaged_line_amid_others_is_refused_by_its_number(tmp_path, damaged):
    record_steps(tmp_path, range(1, 3))
    lines = (tmp_path / METRICS).read_bytes().splitlines(keepends=True)
    (tmp_path / METRICS).write_bytes(lines[0] + damaged + lines[1])
    refusal = r"^line 2 of .*metrics.jsonl is damaged: restore .*, or remove"
    with pytest.raises(LGQError, match=refusal):
        read_records(tmp_path)
    with pytest.raises(LGQError, match=refusal):
        record_steps(tmp_path, range(3, 4), after=2)


class FakeRun:
    """A W&B run that fails from its `good`-th call on."""

    def __init__(self, good: int = 100):
        self.good, self.logged = good, []

    def define_metric(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log(self, values: dict[str, float]) -> None:
        self._call(values)

    def alert(self, title: str, text: str, level: str) -> None:
        self._call((level, title, text))

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

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict, Image=np.asarray))
    return started


@pytest.mark.usefixtures("_no_tensorboard")
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
            journal.show(step, "validation", {"reconstructions": GRADIENT})
            journal.warn(step, COLLAPSE, seconds=1.0)
    after = capture_random_state()
    assert_identical(
        {"numpy": after["numpy"], "torch": after["torch"]}, {k: before[k] for k in ("numpy", "torch")}
    )
    wandb.teardown()  # its own process writes the files, at the latest when it ends
    kept = json.loads((tmp_path / "wandb.json").read_text())
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{kept['id']}.wandb"] * 2
    for file in files:
        words = (b"pictures", b"validation/psnr", b"20.5", b"validation/reconstructions", b"few_codes")
        assert all(word in file.read_bytes() for word in words)
    for step, folder in enumerate(sorted(tmp_path.glob("wandb/offline-run-*")), 1):
        (picture,) = folder.rglob("*.png")
        assert np.array_equal(np.asarray(Image.open(picture)), to_pixels(GRADIENT)), step
    assert [record["step"] for record in read_records(tmp_path)] == [1, 1, 2, 2]


@pytest.mark.parametrize("fails", [False, True])
def test_a_record_carries_its_step_and_the_end_its_exit_code(tmp_path, monkeypatch, fails):
    fake = FakeRun()
    started = use(monkeypatch, fake)
    (tmp_path / "photos").mkdir()
    with (
        suppress(KeyError),
        WandbTracker(tmp_path / "photos", "me/pictures", {"seed": 7}, resumed=False) as tracker,
    ):
        tracker.record(3, "train", {"l1": 0.5})
        tracker.alert(COLLAPSE)
        if fails:
            raise KeyError
    alert = ("WARN", "few_codes", "few codes are used")
    assert fake.logged == [{"step": 3, "train/l1": 0.5}, alert, int(fails)]
    (options,) = started
    expected = {"entity": "me", "project": "pictures", "name": "photos", "config": {"seed": 7}}
    assert options.items() >= (expected | {"resume": "allow"}).items()


def test_the_id_belongs_to_the_directory_and_the_project(tmp_path, monkeypatch):
    started = use(monkeypatch, FakeRun())
    for project in ("a", "a", "b", "a"):
        WandbTracker(tmp_path, project, {}, resumed=True)
    first, second, other, _ = (options["id"] for options in started)
    assert first == second != other


@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.usefixtures("_no_tensorboard")
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


def test_where_wandb_does_not_start_a_new_run_is_refused_and_a_resumed_one_goes_on(
    tmp_path, monkeypatch, caplog
):
    use(monkeypatch, ConnectionError("no network"))
    with pytest.raises(LGQError, match=r"does not start: no network; .*WANDB_MODE=offline"):
        WandbTracker(tmp_path, "a", {}, resumed=False)
    with WandbTracker(tmp_path, "a", {}, resumed=True) as tracker:
        tracker.record(1, "train", {"l1": 0.5})
    assert "does not start, the run continues without it: no network" in caplog.text
