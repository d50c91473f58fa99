"""Every fault is survived: here one attempt at each, in `make faults` all of them."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from faulty_disk import Unsynced

from faults.__main__ import FAULTS
from faults.children import KILLED, Notes
from faults.disk import AtCall, calls_of_a_step, meet
from faults.lab import Fault, Impossible, Lab, open_lab
from faults.torchrun import killed_and_run_again
from lgq.training.checkpoint import Checkpoints

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
QUICK = [fault for fault in FAULTS if not fault.name.startswith("torchrun")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab() as opened:
        yield opened


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.name)
def test_a_fault_is_survived_and_no_saved_step_is_lost(fault: Fault, lab: Lab):
    chance = random.Random(0)
    attempt = chance.choice(list(fault.attempts(lab, chance)))
    try:
        assert attempt() == 0
    except Impossible as reason:
        pytest.skip(str(reason))


def test_torchrun_trains_as_two_processes_and_a_killed_run_ends_as_two_that_were_not(lab):
    assert killed_and_run_again(lab, rank=1, step=4) == 0


def test_faults_meet_every_kind_of_call_and_are_many(lab):
    calls = Counter(calls_of_a_step(lab))
    kinds = {"create", "open", "write", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir"}
    assert calls.keys() == kinds
    attempts = [attempt for fault in FAULTS for attempt in fault.attempts(lab, random.Random(0))]
    assert len(attempts) > 500


def test_the_page_tells_every_fault_with_its_promise():
    page = PAGE.read_text()
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert f"| {fault.name} | {fault.promise} |" in page, "run python -m faults --promises"


@dataclass(frozen=True)
class RemovesTooEarly(AtCall):
    """A program that makes room for a checkpoint before it has written it."""

    def arm(self, out: Path, notes: Notes) -> None:
        make = Checkpoints._make

        def too_early(self: Checkpoints, partial: Path) -> None:
            for path in self.paths():
                shutil.rmtree(path)
            make(self, partial)

        Checkpoints._make = too_early  # type: ignore[method-assign]
        super().arm(out, notes)


@dataclass(frozen=True)
class NeverSyncs(AtCall):
    """A program that does not wait for the disk."""

    def arm(self, out: Path, notes: Notes) -> None:
        Unsynced._synced = lambda self, path: None  # type: ignore[method-assign]
        super().arm(out, notes)


def test_a_removal_that_comes_too_early_would_be_found(lab):
    writes = [number for number, call in enumerate(calls_of_a_step(lab)) if call == "write"]
    written = writes[9]  # of the checkpoint, neither its first write nor its last
    assert survived(lab, AtCall("killed", written))
    assert not survived(lab, RemovesTooEarly("killed", written))


def test_a_missing_sync_would_be_found(lab):
    last = len(calls_of_a_step(lab)) - 1
    assert survived(lab, AtCall("power cut", last))
    assert not survived(lab, NeverSyncs("power cut", last))


def survived(lab: Lab, injection: AtCall) -> bool:
    try:
        return meet(lab, injection, (KILLED,)) == 0
    except AssertionError:
        return False
