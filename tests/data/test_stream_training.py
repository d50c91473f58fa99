"""A run on a stream, stopped anywhere and continued, ends as one that was never stopped."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from identity import assert_identical
from leftovers import NO_TENSORBOARD, last_state
from process_groups import on_processes
from shard_files import piped_shards
from tiny_run import TINY, before_step, left_by, terminate

from lgq.data import DataError, PipeDataset, SampleDataset
from lgq.data.images import Subset
from lgq.errors import LGQError
from lgq.training.settings import LoopSettings
from lgq.training.tokenizer_trainer import train as train_tokenizer

# torch finds two workers too many on a machine with one core.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
VALIDATION = Subset(SampleDataset(), range(3))


@pytest.fixture(autouse=True)
def _no_tensorboard(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)


@pytest.fixture
def data(tmp_path):
    return piped_shards(tmp_path, [3, 1, 4], buffer=2)


def train(data, out, run=TINY, **options):
    return train_tokenizer(run, data, out, val_data=VALIDATION, **options)


def train_stopped_before(step, data, out, run=TINY):
    with pytest.MonkeyPatch.context() as patch:
        before_step(step, terminate, patch)
        return train(data, out, run)


@pytest.mark.parametrize(
    "run", [replace(TINY, accumulate=2), replace(TINY, workers=2)], ids=["alone", "workers"]
)
def test_a_resumed_run_equals_an_unbroken_run_bit_for_bit(data, tmp_path, run):
    train(data, tmp_path / "unbroken", run)
    for step in (0, 3):
        assert train_stopped_before(step, data, tmp_path / "broken", run).reason == "interrupted"
    assert train(data, tmp_path / "broken", run, resume="must").reason == "finished"
    assert_identical(left_by(tmp_path / "broken"), left_by(tmp_path / "unbroken"))


def test_a_run_whose_shard_failed_goes_on_when_it_is_mended(data, tmp_path):
    train(data, tmp_path / "unbroken")
    for shard in range(3):
        path = tmp_path / f"t-{shard}.tar"
        whole = path.read_bytes()
        path.write_bytes(whole[:-9_000])
        with pytest.raises(DataError, match=rf"t-{shard}\.tar cannot be read"):
            train(data, tmp_path / "broken")
        path.write_bytes(whole)
    train(data, tmp_path / "broken")
    assert_identical(left_by(tmp_path / "broken"), left_by(tmp_path / "unbroken"))


def _train_on_two_processes(folder: Path, out: Path, stop: int | None) -> int:
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    data = PipeDataset([f"cat '{folder}/t-{number}.tar'" for number in range(3)], buffer=2)
    outcome = train(data, out) if stop is None else train_stopped_before(stop, data, out)
    return outcome.step


def test_two_processes_resumed_go_on_each_from_its_own_place(data, tmp_path):
    def run(out: str, stop: int | None) -> list[int]:
        return on_processes(2, tmp_path / "results", _train_on_two_processes, tmp_path, tmp_path / out, stop)

    assert run("unbroken", None) == [6, 6]
    assert run("broken", 2) == [3, 3]
    assert run("broken", None) == [6, 6]
    assert_identical(left_by(tmp_path / "broken"), left_by(tmp_path / "unbroken"))
    places = last_state(tmp_path / "broken")["trainer"]["position"]
    assert [place[0] for place in places] == [0, 1]


def test_a_run_tells_its_stream_and_does_not_go_on_with_another_number_of_readers(data, tmp_path):
    train_stopped_before(1, data, tmp_path / "run")
    described = {"source": repr(data), "shards": 3, "readers": 1, "buffer": 2}
    assert last_state(tmp_path / "run")["config"]["data"] == described
    with pytest.raises(LGQError, match=r"`data\.readers` \(was 1, now 2\)"):
        train(data, tmp_path / "run", replace(TINY, workers=2))


def test_validation_and_epochs_need_more_than_a_stream(data, tmp_path):
    for validation in (None, data):
        with pytest.raises(DataError, match=r"validation \(`val_data`\) takes the same images"):
            train_tokenizer(TINY, data, tmp_path / "run", val_data=validation)
    by_epochs = replace(TINY, loop=LoopSettings(epochs=2))
    with pytest.raises(DataError, match=r"of unknown length .* with `steps`"):
        train(data, tmp_path / "run", by_epochs)
    assert not (tmp_path / "run").exists()
