"""Long work shows a bar on a terminal, and plain lines where there is none."""

import re

import pytest

from lgq.progress import ProgressLines, duration, training_progress
from lgq.training.settings import LoopSettings

LINE = r"step 1,500/10,000  loss 0\.2134  21\.33 dB  93\.2% used  [\d,.]+ images/s  [\d hmins]+ left"


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_training_shows_loss_psnr_use_and_rate_on_a_terminal_and_elsewhere(terminal, capfd, monkeypatch):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
    with training_progress(10, 0, 4, is_due=lambda _: True, hidden=False) as shown:
        shown.note({"loss": 0.5, "psnr": 20.0, "utilization": 0.9, "gradient": 1.0})
        shown.advance(1)
    out, err = capfd.readouterr()
    assert out == ""
    assert all(part in err for part in ("loss 0.5000", "20.00 dB", "90.0% used", "images/s"))
    assert terminal or "\x1b" not in err, "no control characters in a log file"


def test_without_a_terminal_there_is_one_line_per_interval_and_one_for_the_last_step(capfd):
    is_due = LoopSettings(steps=10_000, log_every=1_500).logs
    with training_progress(10_000, 0, 4, is_due=is_due, hidden=False) as shown:
        shown.note({"loss": 0.21344, "psnr": 21.333, "utilization": 0.932})
        for step in (1_499, 1_500, 1_501, 9_999, 10_000):
            shown.advance(step)
    first, last = capfd.readouterr().err.splitlines()
    assert re.fullmatch(LINE, first)
    assert last.startswith("step 10,000/10,000 ")
    assert last.endswith(" 0 s left")


def test_a_generator_shows_its_nll(capfd):
    with training_progress(4, 0, 4, is_due=lambda step: step % 2 == 0, hidden=False) as shown:
        shown.note({"nll": 5.4321})
        shown.advance(2)
    assert "NLL 5.432" in capfd.readouterr().err


def test_a_process_that_is_not_the_first_shows_nothing(capfd):
    with training_progress(4, 0, 4, is_due=lambda _: True, hidden=True) as shown:
        shown.advance(1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (3_599, "1 h 0 min"), (7_500, "2 h 5 min")],
)
def test_durations_are_told_in_words(seconds, words):
    assert duration(seconds) == words


def test_other_work_has_a_line_every_half_minute(capfd):
    now = [0.0]
    report = ProgressLines("encoding", clock=lambda: now[0])
    for done in range(0, 1_001, 100):
        report(done, 1_000)
        now[0] += 10
    assert capfd.readouterr().err.splitlines() == [
        "encoding  300/1,000  1 min left",
        "encoding  600/1,000  40 s left",
        "encoding  900/1,000  10 s left",
    ]


def test_each_part_of_the_work_has_its_own_pace_from_where_it_begins(capfd):
    now = [0.0]
    report = ProgressLines("evaluating", clock=lambda: now[0])
    for second, done in [(0, 500), (30, 530), (100, 10), (130, 11)]:
        now[0] = second
        report(done, 1_000)
    assert capfd.readouterr().err.splitlines() == [
        "evaluating  530/1,000  8 min left",
        "evaluating  10/1,000",
        "evaluating  11/1,000  8 h 14 min left",
    ]
