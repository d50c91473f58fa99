"""The objective of VQ-GAN (Esser et al. 2021): pixels, perception, a patch discriminator, the quantizer.

b = images, h w = their height and width in pixels. A step of training, in outline:

    objective = Objective(LossWeights(), perceptual=lpips, discriminator=discriminator)
    loss = objective.tokenizer_loss(images, reconstruction, quantized.loss, step=step)
    loss.total.backward()
    if objective.adversarial(step):
        objective.discriminator_loss(images, reconstruction).total.backward()
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import require_at_least
from lgq.errors import LGQError
from lgq.ops.numerics import at_least_float32, mean

Perceptual = Callable[[Float[Tensor, "b 3 h w"], Float[Tensor, "b 3 h w"]], Float[Tensor, " b"]]
"""A distance for each pair of images in [-1, 1], such as LPIPS."""

_LEAST_GRADIENT = 1e-6
_LARGEST_ADAPTIVE_WEIGHT = 1e4


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """What each part of the objective counts; the quantizer weighs its own terms."""

    l1: float = 1.0
    """Weight of the mean absolute difference between images and reconstruction."""
    lpips: float = 1.0
    """Weight of the perceptual distance; 0 does without the network."""
    gan: float = 0.1
    """Weight of the discriminator's verdict on the reconstruction; 0 does without a discriminator."""
    discriminator_start: int = 10_000
    """Optimizer steps before the discriminator joins; until then nothing of it is computed."""
    adaptive_gan: bool = False
    """Multiply the weight `gan` by the ratio of the gradients that the l1 and lpips terms and the GAN
    term send to the decoder's last layer, so that neither drowns the other."""

    def __post_init__(self) -> None:
        require_at_least(0, l1=self.l1, lpips=self.lpips, gan=self.gan)
        require_at_least(0, discriminator_start=self.discriminator_start)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A scalar to minimise, and what it is made of."""

    total: Float[Tensor, ""]
    terms: dict[str, Tensor]
    """Detached scalars for logs, unweighted; in the order in which one spoils the next."""


class Objective:
    """What a tokenizer and its discriminator minimise, each at its turn.

    weights: of the terms.
    perceptual: distance of two images, required where `weights.lpips` is positive; its own
        parameters should ask for no gradients.
    discriminator: images to logits, positive for real; required where `weights.gan` is positive.
    last_layer: weight of the decoder's last convolution, required by `weights.adaptive_gan`.

    The networks get float32 images (or float64), and run under the autocast of the caller, if any.
    """

    def __init__(
        self,
        weights: LossWeights,
        *,
        perceptual: Perceptual | None = None,
        discriminator: nn.Module | None = None,
        last_layer: Tensor | None = None,
    ):
        _require_parts(weights, perceptual, discriminator, last_layer)
        self.weights = weights
        self.perceptual = perceptual if weights.lpips else None
        self.discriminator = discriminator if weights.gan else None
        self.last_layer = last_layer if weights.adaptive_gan else None

    def adversarial(self, step: int) -> bool:
        """Whether the discriminator takes part, after `step` optimizer steps."""
        return self.discriminator is not None and step >= self.weights.discriminator_start

    def tokenizer_loss(
        self,
        images: Float[Tensor, "b 3 h w"],
        reconstruction: Float[Tensor, "b 3 h w"],
        quantizer_loss: Float[Tensor, ""],
        *,
        step: int,
    ) -> Loss:
        """Encoder, quantizer and decoder minimise this; the discriminator's parameters get no gradient.

        terms: quantizer, l1, lpips, gan, and the gan_weight that the last one had in the total.
        """
        _require_same_shape(images, reconstruction)
        images, reconstruction = at_least_float32(images), at_least_float32(reconstruction)
        distances = self._distances(images, reconstruction)
        distance = self.weights.l1 * distances["l1"] + self.weights.lpips * distances.get("lpips", 0.0)
        terms = {"quantizer": at_least_float32(quantizer_loss), **distances}
        total = terms["quantizer"] + distance
        if self.adversarial(step):
            terms |= self._gan_terms(reconstruction, distance)
            total = total + terms["gan_weight"] * terms["gan"]
        return Loss(total=total, terms=_detached(terms))

    def discriminator_loss(
        self, images: Float[Tensor, "b 3 h w"], reconstruction: Float[Tensor, "b 3 h w"]
    ) -> Loss:
        """The discriminator minimises this; nothing of it reaches the tokenizer.

        terms: logits_real and logits_fake (means), discriminator.
        """
        if self.discriminator is None:
            raise LGQError("with the weight gan=0 no discriminator takes part: ask `adversarial` first.")
        _require_same_shape(images, reconstruction)
        real = self.discriminator(at_least_float32(images))
        fake = self.discriminator(at_least_float32(reconstruction.detach()))
        loss = hinge_discriminator_loss(real, fake)
        terms = {"logits_real": mean(real), "logits_fake": mean(fake), "discriminator": loss}
        return Loss(total=loss, terms=_detached(terms))

    def _distances(self, images: Tensor, reconstruction: Tensor) -> dict[str, Tensor]:
        distances = {"l1": mean((images - reconstruction).abs())}
        if self.perceptual is not None:
            distances["lpips"] = mean(self.perceptual(images, reconstruction))
        return distances

    def _gan_terms(self, reconstruction: Tensor, distance: Tensor) -> dict[str, Tensor]:
        assert self.discriminator is not None
        with _frozen(self.discriminator):
            gan = hinge_generator_loss(self.discriminator(reconstruction))
        weight = gan.new_full((), self.weights.gan)
        if self.last_layer is not None:
            weight = weight * adaptive_gan_weight(distance, gan, self.last_layer)
        return {"gan": gan, "gan_weight": weight}


def hinge_discriminator_loss(
    real: Float[Tensor, "*logits"], fake: Float[Tensor, "*logits"]
) -> Float[Tensor, ""]:
    """mean max(0, 1 - real) + mean max(0, 1 + fake): the sum, as LGQ has it; VQ-GAN halves it."""
    return mean(F.relu(1 - at_least_float32(real))) + mean(F.relu(1 + at_least_float32(fake)))


def hinge_generator_loss(fake: Float[Tensor, "*logits"]) -> Float[Tensor, ""]:
    return -mean(fake)


def adaptive_gan_weight(
    reconstruction_loss: Float[Tensor, ""], gan_loss: Float[Tensor, ""], last_layer: Float[Tensor, "*shape"]
) -> Float[Tensor, ""]:
    """|gradient of reconstruction_loss| / |gradient of gan_loss| at last_layer, in [0, 1e4], detached.

    Both graphs stay for the backward pass that follows.
    """
    pull = _gradient_norm(reconstruction_loss, last_layer)
    push = _gradient_norm(gan_loss, last_layer)
    return (pull / (push + _LEAST_GRADIENT)).clamp(0, _LARGEST_ADAPTIVE_WEIGHT)


def first_non_finite(terms: Mapping[str, Tensor]) -> str | None:
    """The name of the first term that holds a NaN or an infinity, if any."""
    if not terms:
        return None
    # One answer from the device for all terms: each would be a wait of its own.
    finite = torch.stack([torch.isfinite(term).all() for term in terms.values()]).tolist()
    return next((name for name, good in zip(terms, finite, strict=True) if not good), None)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """A forward pass within has a backward pass that goes through the parameters, but not to them."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def _gradient_norm(loss: Tensor, parameter: Tensor) -> Tensor:
    gradient = None
    if loss.requires_grad and parameter.requires_grad:
        (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise LGQError(
            "the adaptive GAN weight compares gradients at last_layer, and the loss has none there: pass the "
            "weight of the layer that made the reconstruction, with gradients on; or set adaptive_gan=False."
        )
    return torch.linalg.vector_norm(at_least_float32(gradient))


def _detached(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: term.detach() for name, term in terms.items()}


def _require_parts(
    weights: LossWeights, perceptual: object | None, discriminator: object | None, last_layer: object | None
) -> None:
    if weights.lpips and perceptual is None:
        raise LGQError(f"lpips={weights.lpips} needs a perceptual network: pass one, or set lpips=0.")
    if weights.gan and discriminator is None:
        raise LGQError(f"gan={weights.gan} needs a discriminator: pass one, or set gan=0.")
    if weights.gan and weights.adaptive_gan and last_layer is None:
        raise LGQError("adaptive_gan=True needs last_layer: pass the weight of the decoder's last layer.")


def _require_same_shape(images: Tensor, reconstruction: Tensor) -> None:
    # Else the difference would broadcast, and the loss would be of something else.
    if images.shape != reconstruction.shape:
        raise LGQError(
            f"a reconstruction has the shape of its images, got {tuple(reconstruction.shape)} "
            f"for {tuple(images.shape)}: crop or resize one of them."
        )
