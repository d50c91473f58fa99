"""The same under torchrun itself, which starts the processes and ends them together."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from identity import assert_identical

from faults.children import PATIENCE
from faults.disk import SURVIVED
from faults.fault import Attempt, Fault
from faults.kills import STEPS
from faults.lab import Lab, left, newest_step

TESTS = Path(__file__).parents[1]


def torchrun(lab: Lab, out: Path, *moment: int) -> int:
    """The exit code of two processes that train; `moment` is the rank that is killed, and its step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "faults.rank", str(lab.photos), str(out)]
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, moment)], env=environment, capture_output=True, timeout=PATIENCE, check=False
    )
    return done.returncode


def killed(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for rank in range(2):
        yield partial(killed_and_run_again, lab, rank, chance.randint(3, STEPS))


def killed_and_run_again(lab: Lab, rank: int, step: int) -> int:
    with lab.place() as out:
        assert torchrun(lab, out, rank, step) == 1
        assert newest_step(out) >= 2, "killed before there was anything to resume"
        assert torchrun(lab, out) == 0
        require_two_undisturbed(lab, out)
    return 0


def require_two_undisturbed(lab: Lab, out: Path) -> None:
    assert json.loads((out / "environment.json").read_text())["world_size"] == 2
    assert_identical(left(out, 2), lab.kept("torchrun", partial(_undisturbed, lab)))


def _undisturbed(lab: Lab) -> Any:
    """By torchrun too: it sets the number of threads, by which sums round differently."""
    with lab.place() as out:
        assert torchrun(lab, out) == 0
        return left(out, 2)


FAULTS = (Fault("torchrun: one of two ranks killed, run again", SURVIVED, killed),)
