"""Records survive a killed process, and a resumed run has none of the future that it left."""

import json
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from leftovers import NoBoard

from lgq.errors import LGQError
from lgq.progress import training_bar
from lgq.training.journal import METRICS, TENSORBOARD, open_journal, read_records


def record_steps(run: Path, steps: range, *, after: int = 0) -> None:
    with open_journal(run, step=after) as journal:
        for step in steps:
            journal.record(step, "train", {"l1": step / 10}, seconds=1.5 * step)


def steps_of(run: Path) -> list[int]:
    return [record["step"] for record in read_records(run)]


def test_a_record_is_a_line_with_step_split_and_values(tmp_path):
    with open_journal(tmp_path, step=0) as journal:
        journal.record(3, "validation", {"psnr": 20.5}, seconds=7.0, best=True)
    (line,) = (tmp_path / METRICS).read_text().splitlines()
    expected = {"step": 3, "split": "validation", "seconds": 7.0, "values": {"psnr": 20.5}, "best": True}
    assert json.loads(line) == expected


def test_a_record_is_in_the_file_before_the_journal_closes(tmp_path):
    with open_journal(tmp_path, step=0) as journal:
        journal.record(1, "train", {"l1": 0.5}, seconds=0.0)
        assert steps_of(tmp_path) == [1]


def test_records_after_the_resumed_step_are_dropped(tmp_path):
    record_steps(tmp_path, range(1, 8))
    record_steps(tmp_path, range(5, 7), after=4)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_run_that_starts_anew_has_no_records_of_an_earlier_one(tmp_path):
    record_steps(tmp_path, range(1, 4))
    record_steps(tmp_path, range(0))
    assert steps_of(tmp_path) == []


@pytest.mark.parametrize("torn", [b"{", b'{"step": 3', b'{"step": 3}', b"\x00\x00\n", b"7\n"])
def test_a_torn_last_line_is_dropped(tmp_path, torn):
    record_steps(tmp_path, range(1, 3))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(torn)
    assert steps_of(tmp_path) == [1, 2]
    record_steps(tmp_path, range(3, 4), after=2)
    assert steps_of(tmp_path) == [1, 2, 3]
    assert torn not in (tmp_path / METRICS).read_bytes().splitlines()


def test_nothing_is_rewritten_where_nothing_is_dropped(tmp_path):
    record_steps(tmp_path, range(1, 3))
    before = (tmp_path / METRICS).stat().st_ino
    record_steps(tmp_path, range(0), after=2)
    assert (tmp_path / METRICS).stat().st_ino == before


def test_a_process_killed_while_it_drops_records_leaves_them_all_or_the_kept_ones(tmp_path, monkeypatch):
    # Events go through other calls than the journal's own, and are not the matter here.
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", NoBoard)
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


def test_a_value_that_is_no_number_is_null(tmp_path):
    with open_journal(tmp_path, step=0) as journal:
        journal.record(1, "validation", {"psnr": float("inf"), "l1": float("nan")}, seconds=0.0)
    assert read_records(tmp_path)[0]["values"] == {"psnr": None, "l1": None}


def test_a_directory_without_records_has_none(tmp_path):
    assert read_records(tmp_path) == []


def test_tensorboard_shows_the_same_values(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record_steps(tmp_path, range(1, 5))
    record_steps(tmp_path, range(3, 4), after=2)
    board = EventAccumulator(str(tmp_path / TENSORBOARD)).Reload()
    scalars = [(event.step, round(event.value, 6)) for event in board.Scalars("train/l1")]
    assert scalars == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_the_progress_bar_is_silent_without_a_terminal(capfd):
    with training_bar(10, 0, 4, hidden=False) as progress:
        progress.note({"loss": 0.5, "psnr": 20.0, "utilization": 0.9, "gradient": 1.0})
        progress.advance(1)
    assert capfd.readouterr() == ("", "")


def test_the_progress_bar_shows_loss_psnr_utilization_and_rate_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with training_bar(10, 0, 4, hidden=False) as progress:
        progress.note({"loss": 0.5, "psnr": 20.0, "utilization": 0.9, "gradient": 1.0})
        progress.advance(1)
    shown = capfd.readouterr().err
    for part in ("loss 0.5000", "20.00 dB", "90.0% used", "images/s"):
        assert part in shown


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
