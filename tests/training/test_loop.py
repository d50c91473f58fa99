"""The loop keeps its promises to whatever learns: here a walk that draws random steps."""

import dataclasses
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from identity import assert_identical
from leftovers import saved_states, timeless_records
from torch import Tensor

from lgq.config import to_json
from lgq.errors import LGQError
from lgq.training.checkpoint import Checkpoints
from lgq.training.journal import WandbTracker, read_records
from lgq.training.loop import SIGNALS, DivergedError, run_loop, stop_on_signals
from lgq.training.settings import LoopSettings, TrainingRun
from lgq.training.trainer import NonFiniteError, Trainer

SETTINGS = LoopSettings(steps=9, log_every=2, validate_every=3, checkpoint_every=2, keep=2)


pytestmark = pytest.mark.usefixtures("_no_tensorboard")


class Walk(Trainer):
    """Learns nothing, but goes somewhere else at each step, by numbers that torch draws."""

    best_by = "distance"
    device = torch.device("cpu")

    def __init__(self, settings: LoopSettings = SETTINGS, out: Path = Path()):
        self.run = TrainingRun(batch_size=4, learning_rate=1.0, loop=settings)
        self.out, self.stride, self.batch_names = out, 1.0, ["a.png", "b.png"]
        self.place = torch.zeros(3)
        self.visited: list[int] = []
        self.signals: dict[int, signal.Signals] = {}
        self.scores: dict[int, float] = {}
        self.poison: dict[int, str] = {}
        torch.manual_seed(3)

    def config(self) -> dict[str, Any]:
        return {"seed": 3, "stride": self.stride, "nested": {"deep": [1, 2]}, "loop": to_json(self.run.loop)}

    def default_config(self) -> dict[str, Any]:
        return {"newer": 1}

    def train_step(self, step: int) -> dict[str, Tensor]:
        self.visited.append(step)
        if step in self.signals:
            os.kill(os.getpid(), self.signals[step])
        if self.poison.get(step) == "raise":
            raise NonFiniteError("the start")
        self.place = self.place + self.stride * torch.rand(3)
        terms = {"near": self.place.min(), "far": self.place.max()}
        if self.poison.get(step) in terms:
            terms[self.poison[step]] *= float("nan")
        return terms

    def validate(self, step: int) -> dict[str, float]:
        return {"distance": self.scores.get(step, float(-self.place.norm())), "other": 1.0}

    def state(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def save_pretrained(self, directory: Path) -> None:
        (directory / "place.json").write_text(json.dumps(self.place.tolist()))

    def _accumulate(self, step: int) -> dict[str, Tensor]:
        raise NotImplementedError


def content(run: Path) -> dict[str, Any]:
    places = {name: (run / name / "place.json").read_text() for name in ("best", "last")}
    return {"states": saved_states(run), "records": timeless_records(run), **places}


def walk(run: Path, **changes: Any) -> Walk:
    trainer = Walk(changes.pop("settings", SETTINGS), run)
    resume = changes.pop("resume", "auto")
    for name, value in changes.items():
        setattr(trainer, name, value)
    trainer.outcome = run_loop(trainer, resume)  # type: ignore[attr-defined]
    return trainer


def test_a_whole_run_leaves_what_the_contract_names(tmp_path):
    outcome = walk(tmp_path / "run").outcome
    assert (outcome.reason, outcome.step, outcome.exit_code) == ("finished", 9, 0)
    assert outcome.best_by == "distance"
    names = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "environment.json", "metrics.jsonl", ".lock"}
    assert names == files | {"checkpoints", "best", "last"}
    records = [(record["step"], record["split"]) for record in read_records(tmp_path / "run")]
    train, validation = [(s, "train") for s in (2, 4, 6, 8, 9)], [(s, "validation") for s in (3, 6, 9)]
    assert records == sorted(train + validation)
    kept = [path.name for path in Checkpoints(tmp_path / "run/checkpoints").paths()]
    assert kept == ["step-000009", "step-000008"]


@pytest.mark.parametrize("stops", [[0], [1], [2], [5], [8], [0, 1, 4, 6]])
def test_a_run_is_stopped_after_a_step_and_resumed_as_if_it_had_not_been(tmp_path, stops):
    walk(tmp_path / "unbroken")
    run = tmp_path / "broken"
    for step, number in zip(stops, itertools.cycle(SIGNALS), strict=False):
        stopped = walk(run, signals={step: number})
        finished = step == 8
        assert stopped.outcome.reason == ("finished" if finished else "interrupted")
        assert (stopped.outcome.step, stopped.outcome.exit_code) == (step + 1, 0 if finished else 75)
        assert Checkpoints(run / "checkpoints").latest().name == f"step-{step + 1:06d}"
        assert json.loads((run / "last/place.json").read_text()) == stopped.place.tolist()
    walk(run)
    # The states that were saved on the way are of other steps; the last is of the same.
    unbroken, broken = content(tmp_path / "unbroken"), content(run)
    last = "step-000009"
    assert_identical(broken.pop("states")[last], unbroken.pop("states")[last])
    assert_identical(broken, unbroken)


def test_a_finished_run_has_nothing_left_to_do_but_weights_that_a_kill_kept_it_from(tmp_path):
    walk(tmp_path)
    before = content(tmp_path)
    (tmp_path / "last/place.json").write_text("of an earlier checkpoint")
    again = walk(tmp_path)
    assert again.visited == []
    assert again.outcome.reason == "finished"
    assert_identical(content(tmp_path), before)


@pytest.mark.parametrize("poison", ["near", "far", "raise"])
def test_nan_stops_the_run_with_a_diagnosis_and_it_resumes_from_its_last_checkpoint(tmp_path, poison):
    run = tmp_path / "broken"
    name = "the start" if poison == "raise" else poison
    with pytest.raises(DivergedError, match=rf"{name} is not finite at step 5: .*of step 4.*a\.png, b\.png"):
        walk(run, poison={5: poison})
    assert Checkpoints(run / "checkpoints").latest().name == "step-000004"
    assert max(record["step"] for record in read_records(run)) == 4
    assert json.loads((run / "last/place.json").read_text()) == place_after(4)
    assert walk(run).visited == [4, 5, 6, 7, 8]
    walk(tmp_path / "unbroken")
    assert_identical(content(run), content(tmp_path / "unbroken"))


def place_after(steps: int) -> list[float]:
    """Where an undisturbed walk is after so many steps."""
    trainer = Walk()
    for step in range(steps):
        trainer.train_step(step)
    return trainer.place.tolist()


def test_patience_ends_a_run_that_no_longer_improves_and_counts_over_restarts(tmp_path):
    settings = LoopSettings(steps=50, validate_every=1, checkpoint_every=50, patience=3)
    changes = {"settings": settings, "scores": {1: 5.0, 2: 4.0, 3: 4.0, 4: 4.5, 5: 6.0, 6: 1.0}}
    outcome = walk(tmp_path / "unbroken", **changes).outcome
    assert (outcome.reason, outcome.step, outcome.best, outcome.best_step) == ("no_improvement", 5, 4.0, 2)
    assert outcome.exit_code == 0
    assert walk(tmp_path / "unbroken", **changes).outcome == outcome
    for step in (0, 2, 3):
        walk(tmp_path / "broken", **changes, signals={step: signal.SIGTERM})
    assert walk(tmp_path / "broken", **changes).outcome == outcome


def test_the_best_weights_are_those_of_the_lowest_score_which_nan_never_is(tmp_path):
    outcome = walk(tmp_path, scores={3: float("nan"), 6: 1.0, 9: 1.5}).outcome
    assert (outcome.best, outcome.best_step) == (1.0, 6)
    assert json.loads((tmp_path / "best/place.json").read_text()) == place_after(6)
    chosen = [(r["step"], r["best_by"]) for r in read_records(tmp_path) if r.get("best")]
    assert chosen == [(6, "distance")]


class Killed(BaseException):
    pass


def mortal(last: int, settings: LoopSettings, out: Path) -> Walk:
    """A walk that is killed when it is to do something for the `last`-th time."""
    trainer, calls = Walk(settings, out), itertools.count(1)

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if next(calls) == last:
                raise Killed
            return method(*args)

        return call

    for name in ("train_step", "validate", "state", "save_pretrained"):
        setattr(trainer, name, dying(getattr(trainer, name)))
    return trainer


def test_wherever_a_run_is_killed_its_best_weights_are_of_the_best_score_that_it_knows(quick_path):
    settings = LoopSettings(steps=4, validate_every=1, checkpoint_every=4)
    best_steps = []
    for last in range(1, 18):
        run = quick_path / str(last)
        trainer = mortal(last, settings, run)
        trainer.scores = {1: 3.0, 2: 2.0, 3: 5.0, 4: 1.0}
        with pytest.raises(Killed):
            run_loop(trainer)
        if not Checkpoints(run / "checkpoints").paths():
            assert not (run / "best").exists()
            continue
        out_of_time = dataclasses.replace(settings, minutes=1e-9)
        best_steps.append(walk(run, settings=out_of_time).outcome.best_step)
        assert json.loads((run / "best/place.json").read_text()) == place_after(best_steps[-1]), last
    assert set(best_steps) == {1, 2, 4}


def test_no_checkpoint_is_ahead_of_its_records_on_the_disk(tmp_path, monkeypatch):
    metrics, fsync, rename = str(tmp_path / "metrics.jsonl"), os.fsync, os.rename
    on_disk, observed = {}, []

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        on_disk[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_size

    def noted_rename(old: Path, new: Path) -> None:
        if Path(new).parent.name == "checkpoints" and not Path(new).suffix:
            observed.append((on_disk.get(metrics), os.path.getsize(metrics)))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    walk(tmp_path)
    assert len(observed) == 6
    assert all(synced == written > 0 for synced, written in observed)


def test_the_time_budget_counts_over_restarts(tmp_path):
    walk(tmp_path, signals={0: signal.SIGTERM}, settings=LoopSettings(steps=9))
    spent = walk(tmp_path, settings=LoopSettings(steps=9, minutes=1e-9))
    assert (spent.outcome.reason, spent.outcome.exit_code, spent.visited) == ("out_of_time", 0, [])
    assert walk(tmp_path, settings=LoopSettings(steps=9, minutes=60)).outcome.reason == "finished"


def test_a_run_out_of_time_saves_the_step_that_it_was_at(tmp_path, monkeypatch):
    times = itertools.count(0.0, 20.0)  # seconds, at each look
    monkeypatch.setattr("lgq.training.loop.time", SimpleNamespace(monotonic=lambda: next(times)))
    outcome = walk(tmp_path, settings=LoopSettings(steps=9, log_every=9, minutes=1.5)).outcome
    assert (outcome.reason, outcome.step) == ("out_of_time", 4)
    assert Checkpoints(tmp_path / "checkpoints").latest().name == "step-000004"


def test_a_run_is_resumed_only_where_the_caller_allows_it(tmp_path):
    with pytest.raises(LGQError, match="holds no run to resume"):
        walk(tmp_path / "run", resume="must")
    assert not (tmp_path / "run").exists()
    walk(tmp_path / "run", resume="never", signals={2: signal.SIGTERM})
    with pytest.raises(LGQError, match="holds a run already"):
        walk(tmp_path / "run", resume="never")
    assert walk(tmp_path / "run", resume="must").visited[0] == 3
    with pytest.raises(Exception, match="perhaps"):
        walk(tmp_path, resume="perhaps")


def test_other_settings_are_refused_by_name(tmp_path):
    walk(tmp_path, signals={2: signal.SIGTERM})
    before = content(tmp_path)
    longer = LoopSettings(steps=10, log_every=2, validate_every=3)
    with pytest.raises(LGQError, match=r"other settings: `stride` \(was 1\.0, now 2\.0\); go on with"):
        walk(tmp_path, stride=2.0, settings=longer)
    assert_identical(content(tmp_path), before)
    assert json.loads((tmp_path / "config.json").read_text())["stride"] == 1.0


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_of_an_earlier_version_goes_on_with_the_defaults_of_newer_settings(
    tmp_path, monkeypatch, changed
):
    walk(tmp_path, signals={2: signal.SIGTERM})
    older = Walk.config
    monkeypatch.setattr(Walk, "config", lambda self: older(self) | {"newer": 2 if changed else 1})
    if not changed:
        assert walk(tmp_path).visited[0] == 3
        return
    with pytest.raises(LGQError, match=r"other settings: `newer` \(was 1, now 2\)"):
        walk(tmp_path)


def test_settings_that_do_not_change_the_weights_may_change(tmp_path):
    walk(tmp_path / "unbroken")
    walk(tmp_path / "run", signals={2: signal.SIGTERM})
    other = LoopSettings(steps=9, validate_every=2, log_every=1, checkpoint_every=4, keep=1, minutes=60)
    assert torch.equal(walk(tmp_path / "run", settings=other).place, walk(tmp_path / "unbroken").place)
    assert json.loads((tmp_path / "run/config.json").read_text())["loop"]["keep"] == 1


def test_weights_and_biases_gets_every_record_and_may_join_later(tmp_path, monkeypatch):
    told = []

    class Tracker(WandbTracker):
        def __init__(self, run: Path, project: str, config: dict[str, Any], *, resumed: bool):
            told.append((run, project, config["loop"]["wandb"], resumed))

        def __enter__(self) -> "Tracker":
            return self

        def __exit__(self, *_: object) -> None:
            told.append("over")

        def record(self, step: int, split: str, values: dict[str, float]) -> None:
            told.append((step, split))

    monkeypatch.setattr("lgq.training.loop.WandbTracker", Tracker)
    walk(tmp_path, signals={4: signal.SIGTERM})
    assert told == []
    walk(tmp_path, settings=dataclasses.replace(SETTINGS, wandb="pictures"))
    recorded = [(record["step"], record["split"]) for record in read_records(tmp_path) if record["step"] > 5]
    assert told == [(tmp_path, "pictures", "pictures", True), *recorded, "over"]


def test_settings_and_environment_are_there_before_the_first_step(tmp_path):
    observed = {}

    class Curious(Walk):
        def train_step(self, step: int) -> dict[str, Tensor]:
            observed.update({p.name: json.loads(p.read_text()) for p in tmp_path.glob("*.json")})
            return super().train_step(step)

    trainer = Curious(out=tmp_path)
    run_loop(trainer)
    assert observed["config.json"] == trainer.config()
    environment = observed["environment.json"]
    assert {"python", "torch", "lgq", "platform", "git_commit", "source", "devices"} <= environment.keys()
    assert (environment["seed"], environment["world_size"]) == (3, 1)
    assert environment["torch"] == torch.__version__


def test_a_longer_walk_goes_on_from_where_it_was_killed_before_it_could_save(tmp_path):
    longer = dataclasses.replace(SETTINGS, steps=14, checkpoint_every=50, validate_every=50)
    walk(tmp_path / "unbroken")
    walk(tmp_path / "unbroken", settings=longer)
    walk(tmp_path / "broken")
    for killed_at in (1, 3):
        trainer = mortal(killed_at + 1, longer, tmp_path / "broken")  # its first call publishes weights
        with pytest.raises(Killed):
            run_loop(trainer)
    assert walk(tmp_path / "broken", settings=longer).visited == [9, 10, 11, 12, 13]
    assert_identical(content(tmp_path / "broken"), content(tmp_path / "unbroken"))
    histories = [r["extension"] for r in read_records(tmp_path / "broken") if r["split"] == "history"]
    assert histories == [{"step": 9, "planned": 9, "steps": 14}]


def test_a_run_that_is_not_extended_after_all_has_no_word_of_it(tmp_path):
    walk(tmp_path)
    before = content(tmp_path)
    spent = dataclasses.replace(SETTINGS, steps=14, minutes=1e-9)
    assert walk(tmp_path, settings=spent).outcome.reason == "out_of_time"
    assert json.loads((tmp_path / "config.json").read_text())["extensions"]
    assert walk(tmp_path).outcome.reason == "finished"
    assert_identical(content(tmp_path), before)
    assert "extensions" not in json.loads((tmp_path / "config.json").read_text())


def test_a_run_may_be_resumed_by_its_steps_instead_of_its_epochs(tmp_path):
    by_epochs = dataclasses.replace(SETTINGS, epochs=2).for_data(12, images_per_step=4)
    walk(tmp_path, settings=by_epochs, signals={2: signal.SIGTERM})
    assert walk(tmp_path, settings=dataclasses.replace(SETTINGS, steps=6)).outcome.reason == "finished"


@pytest.mark.parametrize(
    "signals",
    [
        *([number] for number in SIGNALS),
        [signal.SIGUSR1, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGINT],
    ],
)
def test_signals_set_a_flag(signals):
    with stop_on_signals() as stop:
        assert not stop
        for number in signals:
            os.kill(os.getpid(), number)
        assert stop


def test_a_second_interrupt_does_not_wait():
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_as_before_even_after_an_error():
    def own(number, frame):
        return None

    before = signal.signal(signal.SIGUSR1, own)
    try:
        others = {number: signal.getsignal(number) for number in SIGNALS}
        with suppress(RuntimeError), stop_on_signals():
            assert signal.getsignal(signal.SIGUSR1) is not own
            raise RuntimeError
        assert {number: signal.getsignal(number) for number in SIGNALS} == others
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_another_thread_nothing_is_installed():
    observed = []

    def look() -> None:
        with stop_on_signals() as stop:
            observed.append((bool(stop), signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert observed == [(False, before)]
