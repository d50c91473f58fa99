"""Networks: autoencoder, discriminator, LPIPS, Inception and the transformer of the generator."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch a module to eval mode inside the block: no dropout, and quantizers do not learn."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
