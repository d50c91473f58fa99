"""The loss of VQ-GAN (Esser et al. 2021): L1, LPIPS, a patch discriminator, and the quantizer's own loss.

b = images, h w = their height and width in pixels. A training step in outline:

    objective = Objective(LossWeights(), perceptual=lpips, discriminator=discriminator)
    loss = objective.tokenizer_loss(images, reconstruction, quantized.loss, step=step)
    loss.total.backward()
    if objective.adversarial(step):
        objective.discriminator_loss(images, reconstruction).total.backward()
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import require_at_least, require_one_of
from lgq.ops.numerics import at_least_float32, mean

Perceptual = Callable[[Float[Tensor, "b 3 h w"], Float[Tensor, "b 3 h w"]], Float[Tensor, " b"]]
"""Distance of each pair of images in [-1, 1], such as LPIPS."""

_LEAST_GRADIENT = 1e-6
_LARGEST_ADAPTIVE_WEIGHT = 1e4


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the loss terms; the quantizer weights its own."""

    l1: float = 1.0
    """Weight of the mean absolute difference between images and reconstructions."""
    lpips: float = 1.0
    """Weight of the LPIPS distance between images and reconstructions; 0 runs without its network."""
    lpips_images: int | None = None
    """Images of each batch on which LPIPS is computed, the first ones; None computes it on all."""
    lpips_precision: Literal["float32", "bf16"] = "float32"
    """Precision of LPIPS's convolutions in the loss; distances, and LPIPS as a metric, are in float32."""
    gan: float = 0.1
    """Weight of the GAN term; 0 trains without a discriminator."""
    discriminator_start: int = 10_000
    """Step at which the discriminator joins; before it, the GAN term is not computed."""
    adaptive_gan: bool = False
    """Multiply `gan` by the ratio of the gradient norms of the l1 and lpips terms and of the GAN term at
    the decoder's last layer (the adaptive weight of VQ-GAN)."""

    def __post_init__(self) -> None:
        require_at_least(0, l1=self.l1, lpips=self.lpips, gan=self.gan)
        require_at_least(0, discriminator_start=self.discriminator_start)
        require_at_least(1, lpips_images=1 if self.lpips_images is None else self.lpips_images)
        require_one_of(("float32", "bf16"), lpips_precision=self.lpips_precision)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss and its terms."""

    total: Float[Tensor, ""]
    terms: dict[str, Tensor]
    """Detached, unweighted scalars for the log; a NaN term comes before those that it spoils."""


class Objective:
    """Losses of a tokenizer and of its discriminator.

    weights: weights of the terms.
    perceptual: distance of two images, required if `weights.lpips` is positive; its own parameters should
        not require gradients.
    discriminator: images to logits, positive for real; required if `weights.gan` is positive.
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
        assert perceptual is not None or not weights.lpips
        assert discriminator is not None or not weights.gan
        assert last_layer is not None or not (weights.gan and weights.adaptive_gan)
        self.weights = weights
        self.perceptual = perceptual if weights.lpips else None
        self.discriminator = discriminator if weights.gan else None
        self.last_layer = last_layer if weights.adaptive_gan else None

    def adversarial(self, step: int) -> bool:
        """Return whether the discriminator takes part in step `step`."""
        return self.discriminator is not None and step >= self.weights.discriminator_start

    def tokenizer_loss(
        self,
        images: Float[Tensor, "b 3 h w"],
        reconstruction: Float[Tensor, "b 3 h w"],
        quantizer_loss: Float[Tensor, ""],
        *,
        step: int,
    ) -> Loss:
        """Return the loss of encoder, quantizer and decoder; the discriminator gets no gradient from it.

        Its terms are quantizer, l1, lpips, gan, and gan_weight, the weight of gan in the total.
        """
        assert images.shape == reconstruction.shape
        images, reconstruction = at_least_float32(images), at_least_float32(reconstruction)
        distances = {"l1": mean((images - reconstruction).abs())}
        if self.perceptual is not None:
            part = slice(self.weights.lpips_images)
            distances["lpips"] = mean(self.perceptual(images[part], reconstruction[part]))
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
        """Return the loss of the discriminator; the tokenizer gets no gradient from it.

        Its terms are the mean logits_real and logits_fake, and discriminator.
        """
        assert self.discriminator is not None
        assert images.shape == reconstruction.shape
        real = self.discriminator(at_least_float32(images))
        fake = self.discriminator(at_least_float32(reconstruction.detach()))
        loss = hinge_discriminator_loss(real, fake)
        terms = {"logits_real": mean(real), "logits_fake": mean(fake), "discriminator": loss}
        return Loss(total=loss, terms=_detached(terms))

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
    """Return mean max(0, 1 - real) + mean max(0, 1 + fake): the sum, as in LGQ; VQ-GAN halves it."""
    return mean(F.relu(1 - at_least_float32(real))) + mean(F.relu(1 + at_least_float32(fake)))


def hinge_generator_loss(fake: Float[Tensor, "*logits"]) -> Float[Tensor, ""]:
    return -mean(fake)


def adaptive_gan_weight(
    reconstruction_loss: Float[Tensor, ""], gan_loss: Float[Tensor, ""], last_layer: Float[Tensor, "*shape"]
) -> Float[Tensor, ""]:
    """Return |gradient of reconstruction_loss| / |gradient of gan_loss| at last_layer, in [0, 1e4], detached.

    Both graphs stay for the backward pass that follows.
    """
    reconstruction_norm = _gradient_norm(reconstruction_loss, last_layer)
    gan_norm = _gradient_norm(gan_loss, last_layer)
    return (reconstruction_norm / (gan_norm + _LEAST_GRADIENT)).clamp(0, _LARGEST_ADAPTIVE_WEIGHT)


def first_non_finite(terms: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first term with NaN or infinity, if any."""
    if not terms:
        return None
    # One transfer from the device for all terms: each would be a wait of its own.
    finite = torch.stack([torch.isfinite(term).all() for term in terms.values()]).tolist()
    return next((name for name, is_finite in zip(terms, finite, strict=True) if not is_finite), None)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Let gradients of a forward pass inside the block flow through a module, but not to its parameters."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _gradient_norm(loss: Tensor, parameter: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
    return torch.linalg.vector_norm(at_least_float32(gradient))


def _detached(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: term.detach() for name, term in terms.items()}
