"""One of the processes that torchrun starts; kills itself where it is told to.

torchrun --nproc_per_node 2 -m faults.rank PHOTOS RUN [RANK STEP]
"""

import os
import signal
import sys
from pathlib import Path

import torch
from leftovers import NO_TENSORBOARD
from tiny_run import train

from faults.injections import SignalAtStep
from faults.kills import TWO
from faults.notes import Notes
from lgq.distributed import leave_processes

if __name__ == "__main__":
    photos, out, *moment = sys.argv[1:]
    torch.set_num_threads(1)
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    if moment and os.environ["RANK"] == moment[0]:
        SignalAtStep(int(moment[1]), (signal.SIGKILL,)).arm(Path(out), Notes(Path(out)))
    outcome = train(TWO, Path(photos), Path(out))
    leave_processes()
    sys.exit(outcome.exit_code)
