"""What a run needs, before it starts: its parameters, and an estimate of its memory.

Weights, gradients and optimizer states are counted. What the backward pass keeps is measured: one
image goes forward, and the tensors that autograd saves are added up; a batch keeps as many times that.
Left out are passing buffers, the data loader, and what torch itself takes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lgq.data.tokens import TokenDataset
from lgq.models.lpips import LPIPS
from lgq.models.masking import masked_loss
from lgq.tokenizer import Tokenizer
from lgq.training.generator_trainer import build_generator
from lgq.training.networks import build_networks
from lgq.training.settings import GeneratorRun, TokenizerRun, TrainingRun

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Of one process."""

    parameters: dict[str, int]
    """Learned ones, by part."""
    bytes: dict[str, int]
    """By what they hold."""


def footprint(run: TokenizerRun) -> Footprint:
    # With random weights in the place of LPIPS: a plan needs no download.
    without = replace(run, loss=replace(run.loss, lpips=0.0))
    tokenizer, discriminator, _ = build_networks(without, torch.device("cpu"), torch.contiguous_format)
    perceptual = LPIPS() if run.loss.lpips else None
    parameters = tokenizer.parameter_counts()
    if discriminator is not None:
        parameters["discriminator"] = _count(discriminator.parameters())
    sizes = _learning(run, parameters, tokenizer)
    if perceptual is not None:
        sizes["LPIPS"] = _FLOAT32 * _count(perceptual.buffers())
    image = torch.zeros(1, 3, run.image_size, run.image_size)

    def forward() -> None:
        reconstruction = tokenizer(image).reconstruction
        if perceptual is not None:
            perceptual(reconstruction, image)
        if discriminator is not None:
            discriminator(reconstruction)

    networks = [network for network in (tokenizer, discriminator, perceptual) if network is not None]
    sizes["activations"] = _kept(run, networks, forward)
    return Footprint(parameters=parameters, bytes=sizes)


def generator_footprint(run: GeneratorRun, tokens: TokenDataset, tokenizer: Tokenizer) -> Footprint:
    """With every token of the image hidden, which is the most that training ever asks for."""
    transformer = build_generator(run, tokens, tokenizer).transformer
    parameters = {"transformer": _count(transformer.parameters())}
    sizes = _learning(run, parameters, transformer)
    sizes["tokenizer"] = _FLOAT32 * (_count(tokenizer.parameters()) + _count(tokenizer.buffers()))
    hidden = torch.ones(1, transformer.length, dtype=torch.bool)
    blank = torch.full((1, transformer.length), transformer.mask_token)
    label = torch.zeros(1, dtype=torch.int64)

    def forward() -> None:
        masked_loss(transformer(blank, label, hidden), torch.zeros(transformer.length, dtype=torch.int64))

    sizes["activations"] = _kept(run, [transformer], forward)
    return Footprint(parameters=parameters, bytes=sizes)


def _learning(run: TrainingRun, parameters: dict[str, int], averaged: nn.Module) -> dict[str, int]:
    """Bytes of what learns, and of all that goes with it.

    averaged: the network of which there is an average, if any.
    """
    learned = _FLOAT32 * sum(parameters.values())
    running = _FLOAT32 * _count(averaged.buffers())
    sizes = {"weights": learned + running, "gradients": learned, "optimizer": 2 * learned}
    if run.average_decay is not None:
        sizes["average"] = _FLOAT32 * _count(averaged.parameters())
    return sizes


def _kept(run: TrainingRun, networks: Sequence[nn.Module], forward: Callable[[], object]) -> int:
    """Bytes that a batch leaves behind for its backward pass, by those of one image."""
    weights = {x.data_ptr() for network in networks for x in (*network.parameters(), *network.buffers())}
    with run.autocast("cpu"), _saved_tensors() as saved:
        forward()
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in saved}
    return run.batch_size * sum(size for place, size in sizes.items() if place not in weights)


@contextmanager
def _saved_tensors() -> Iterator[list[Tensor]]:
    saved: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        yield saved


def _count(tensors: Iterator[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
