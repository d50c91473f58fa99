"""Counts of a run, without running it: operations of an image, bytes of gradients, checkpoints, tokens.

Operations are multiplications and additions, as torch counts them for convolutions and products; all else
is memory's work. The networks live on the `meta` device, where tensors have a shape and no values.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lgq.models.discriminator import PatchDiscriminator
from lgq.models.lpips import LPIPS
from lgq.models.maskgit import MaskedTransformer
from lgq.models.masking import masked_loss
from lgq.runs import named_generator
from lgq.tokenizer import Tokenizer
from lgq.training.losses import Objective
from lgq.training.recipe import TokenizerRun

_FLOAT32 = 4
_MOMENTS = 2
"""That AdamW keeps of each weight."""
_CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Of one process, and of one image."""

    encoder: float
    """Operations of a forward pass, up to the tokens."""
    forward: float
    """Operations of all forward passes of a training step."""
    backward: float
    gradients: int
    """Bytes that DistributedDataParallel sums in a step."""
    late_gradients: int
    """Bytes of the discriminator's, which are summed after them."""
    late_sums: int
    """In so many calls: one for each tensor."""
    checkpoint: int
    """Bytes of weights and optimizers, of tokenizer and discriminator."""
    tokens: int
    """Bytes of an image's tokens."""


def counts_of(run: TokenizerRun) -> Counts:
    """With every part of the objective, as after `discriminator_start`."""
    with torch.device("meta"):
        tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size)
        discriminator = PatchDiscriminator() if run.loss.gan else None
        perceptual = LPIPS() if run.loss.lpips else None
        objective = Objective(
            replace(run.loss, adaptive_gan=False), perceptual=perceptual, discriminator=discriminator
        )
        encoder, forward, backward = _operations(tokenizer, objective, run)
    learned = sum(map(_bytes, filter(None, (tokenizer, discriminator))))
    return Counts(
        encoder=encoder,
        forward=forward,
        backward=backward,
        gradients=_bytes(tokenizer),
        late_gradients=_bytes(discriminator) if discriminator else 0,
        late_sums=len(list(discriminator.parameters())) if discriminator else 0,
        checkpoint=(1 + _MOMENTS) * learned,
        tokens=prod(_grid(run)) * (2 if run.codebook_size <= 2**16 else 4),
    )


def generator_operations(name: str, *, codes: int, tokens: int) -> tuple[float, float]:
    """Of one image, forward and backward, of a named generator that is asked for every token."""
    transformer = MaskedTransformer(codes, tokens, _CLASSES, named_generator(name).transformer).eval()
    everywhere = torch.ones(1, tokens, dtype=torch.bool)
    blank, label = torch.zeros(1, tokens, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    losses: list[torch.Tensor] = []

    def forward() -> None:
        losses.append(masked_loss(transformer(blank, label, everywhere), blank.flatten()))

    return operations(forward), operations(lambda: losses[0].backward())


def operations(run: Callable[[], object]) -> float:
    """That torch counts in a call."""
    # Attention as two products: those of the fused kernels for CPUs are not counted.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def _operations(tokenizer: Tokenizer, objective: Objective, run: TokenizerRun) -> tuple[float, float, float]:
    images, step = torch.zeros(1, 3, run.image_size, run.image_size), run.loss.discriminator_start
    made: list[torch.Tensor] = []
    encoder = operations(lambda: made.append(tokenizer.encoder(images)))
    decoder = operations(lambda: made.append(tokenizer.decoder(made[0])))
    none = torch.zeros(())
    judged = operations(lambda: made.append(objective.tokenizer_loss(images, made[1], none, step=step).total))
    backward = operations(lambda: made[2].backward())
    if objective.adversarial(step):
        judged += operations(lambda: made.append(objective.discriminator_loss(images, made[1]).total))
        backward += operations(lambda: made[3].backward())
    # One product of all vectors and codes to find the nearest, and five of its size to learn from all.
    product = 2 * prod(_grid(run)) * run.codebook_size * run.backbone.latent_channels
    return encoder + product, encoder + product + decoder + judged, backward + 5 * product


def _grid(run: TokenizerRun) -> tuple[int, int]:
    side = run.image_size // run.backbone.factor
    return side, side


def _bytes(network: nn.Module) -> int:
    return _FLOAT32 * sum(parameter.numel() for parameter in network.parameters())
