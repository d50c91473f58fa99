"""Imported by the process that children are forked from: it trains once, so that none starts cold."""

import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from leftovers import NO_TENSORBOARD
from tiny_run import TINY, paint_photos, train

from lgq.training.settings import LoopSettings

# Threads would not live on in a fork.
torch.set_num_threads(1)
sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
logging.getLogger("lgq").setLevel(logging.ERROR)
with tempfile.TemporaryDirectory() as _folder:
    _photos = paint_photos(Path(_folder, "photos"))
    train(replace(TINY, loop=LoopSettings(steps=1)), _photos, Path(_folder, "run"))
logging.getLogger("lgq").setLevel(logging.NOTSET)
