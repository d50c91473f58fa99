"""Networks in eval mode, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """No dropout; and a quantizer in train mode would learn from the images it is judged by."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
