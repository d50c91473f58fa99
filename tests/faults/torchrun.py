"""One of two ranks is killed under torchrun itself, which starts the processes and ends them together.

This file is also the program of a rank, which kills itself where it is told to:

torchrun --nproc_per_node 2 -m faults.torchrun PHOTOS RUN [RANK STEP]
"""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from identity import assert_identical
from leftovers import NO_TENSORBOARD
from tiny_run import train

from faults.children import PATIENCE, Notes
from faults.injections import SignalAtStep
from faults.kills import STEPS, TWO
from faults.lab import SURVIVED, Fault, Lab, left, newest_step
from lgq.distributed import leave_processes

TESTS = Path(__file__).parents[1]


def torchrun(lab: Lab, out: Path, *moment: int) -> int:
    """Train in two processes and return the exit code; `moment` is the rank that is killed, and its step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "faults.torchrun", str(lab.photos), str(out), *map(str, moment)]
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE, check=False)
    return done.returncode


def killed_and_run_again(lab: Lab, rank: int, step: int) -> int:
    with lab.place() as out:
        assert torchrun(lab, out, rank, step) == 1
        assert newest_step(out) >= 2, "killed before there was anything to resume"
        assert torchrun(lab, out) == 0
        assert json.loads((out / "environment.json").read_text())["world_size"] == 2
        assert_identical(left(out, 2), lab.kept("torchrun", partial(_undisturbed, lab)))
    return 0


def _undisturbed(lab: Lab) -> Any:
    """Train under torchrun too: it sets the number of threads, by which sums round differently."""
    with lab.place() as out:
        assert torchrun(lab, out) == 0
        return left(out, 2)


FAULTS = (
    Fault(
        "torchrun: one of two ranks killed, run again",
        SURVIVED,
        killed_and_run_again,
        lambda _, c: [(rank, c.randint(3, STEPS)) for rank in range(2)],
    ),
)

if __name__ == "__main__":
    photos, out, *moment = sys.argv[1:]
    torch.set_num_threads(1)
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    if moment and os.environ["RANK"] == moment[0]:
        SignalAtStep(int(moment[1]), (signal.SIGKILL,)).arm(Path(out), Notes(Path(out)))
    outcome = train(TWO, Path(photos), Path(out))
    leave_processes()
    sys.exit(outcome.exit_code)
