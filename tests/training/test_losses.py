"""Laws of the VQ-GAN objective."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lgq.errors import LGQError
from lgq.models.discriminator import PatchDiscriminator
from lgq.training.losses import (
    LossWeights,
    Objective,
    adaptive_gan_weight,
    first_non_finite,
    hinge_discriminator_loss,
    hinge_generator_loss,
)

SHAPE = (2, 3, 16, 16)
NOTHING = torch.zeros(())


def squared_distance(images: Tensor, others: Tensor) -> Tensor:
    return (images - others).square().mean((1, 2, 3))


def discriminator() -> PatchDiscriminator:
    return PatchDiscriminator(base_width=4, layers=1)


def adversarial_objective(network: nn.Module, **weights) -> Objective:
    return Objective(LossWeights(discriminator_start=0, lpips=0, **weights), discriminator=network)


class MustNotRun(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise AssertionError("this network must not be called")


@pytest.fixture
def images() -> Tensor:
    return torch.rand(SHAPE) * 2 - 1


@pytest.fixture
def decoder() -> nn.Conv2d:
    return nn.Conv2d(3, 3, 3, padding=1)


# The pure formulas.


def test_hinge_values_are_those_by_hand():
    real, fake = torch.tensor([2.0, 0.5, -1.0, 1.0]), torch.tensor([-2.0, -0.5, 1.0, 0.5])
    assert hinge_discriminator_loss(real, fake).item() == (0 + 0.5 + 2 + 0) / 4 + (0 + 0.5 + 2 + 1.5) / 4
    assert hinge_generator_loss(fake).item() == (2 + 0.5 - 1 - 0.5) / 4


@pytest.mark.parametrize(
    ("pull", "push", "expected"), [(1.0, 0.0, 1e4), (1e3, 1e-3, 1e4), (0.0, 1.0, 0.0), (1e-5, 3e-6, 2.5)]
)
def test_adaptive_weight_is_clamped_and_has_an_offset_in_its_denominator(pull, push, expected):
    layer = torch.ones(1, requires_grad=True)
    weight = adaptive_gan_weight((layer * pull).sum(), (layer * push).sum(), layer)
    assert weight.item() == pytest.approx(expected, rel=1e-5)
    assert not weight.requires_grad


def test_first_non_finite_names_the_culprit():
    good, nan, inf = torch.tensor(1.0), torch.tensor(torch.nan), torch.tensor(-torch.inf)
    assert first_non_finite({}) is None
    assert first_non_finite({"l1": good, "gan": good}) is None
    assert first_non_finite({"l1": good, "lpips": inf, "gan": nan}) == "lpips"
    assert first_non_finite({"l1": nan, "lpips": inf}) == "l1"
    assert first_non_finite({"l1": good, "histogram": torch.tensor([0, torch.nan])}) == "histogram"


# The tokenizer's turn.


def test_total_is_the_weighted_sum_of_the_plain_formulas(images):
    weights = LossWeights(l1=0.7, lpips=1.3, gan=0.2, discriminator_start=5)
    network = discriminator().eval()
    objective = Objective(weights, perceptual=squared_distance, discriminator=network)
    reconstruction = torch.randn(SHAPE)
    loss = objective.tokenizer_loss(images, reconstruction, torch.tensor(0.31), step=5)

    difference = images.double().numpy() - reconstruction.double().numpy()
    expected = {
        "quantizer": 0.31,
        "l1": np.abs(difference).mean(),
        "lpips": (difference**2).mean(),
        "gan": -network(reconstruction).detach().double().numpy().mean(),
        "gan_weight": 0.2,
    }
    assert {name: term.item() for name, term in loss.terms.items()} == pytest.approx(expected, rel=1e-5)
    assert list(loss.terms) == list(expected), "a term comes before those that it spoils"
    total = 0.31 + 0.7 * expected["l1"] + 1.3 * expected["lpips"] + 0.2 * expected["gan"]
    assert loss.total.item() == pytest.approx(total, rel=1e-5)


def test_adaptive_weight_multiplies_that_of_the_settings(images, decoder):
    weights = LossWeights(l1=0.7, lpips=1.3, gan=0.2, discriminator_start=0, adaptive_gan=True)
    network = discriminator().eval()
    parts = {"perceptual": squared_distance, "discriminator": network, "last_layer": decoder.weight}
    reconstruction = decoder(images)
    loss = Objective(weights, **parts).tokenizer_loss(images, reconstruction, NOTHING, step=0)

    difference = images - reconstruction
    distance = 0.7 * difference.abs().mean() + 1.3 * difference.square().mean()
    (pull,) = torch.autograd.grad(distance, decoder.weight, retain_graph=True)
    (push,) = torch.autograd.grad(-network(reconstruction).mean(), decoder.weight, retain_graph=True)
    expected = 0.2 * pull.norm() / (push.norm() + 1e-6)
    torch.testing.assert_close(loss.terms["gan_weight"], expected)
    torch.testing.assert_close(loss.total, distance + expected * loss.terms["gan"])
    assert decoder.weight.grad is None
    loss.total.backward()
    torch.testing.assert_close(decoder.weight.grad, pull + expected * push)


def test_terms_are_detached_and_only_the_total_learns(images, decoder):
    objective = adversarial_objective(discriminator())
    quantizer_loss = torch.tensor(0.5, requires_grad=True)
    loss = objective.tokenizer_loss(images, decoder(images), quantizer_loss, step=0)
    assert loss.total.requires_grad
    assert not any(term.requires_grad for term in loss.terms.values())
    loss.total.backward()
    assert quantizer_loss.grad.item() == 1


def test_generator_term_reaches_the_reconstruction_but_not_the_discriminator(images):
    network = discriminator()
    reconstruction = torch.randn(SHAPE, requires_grad=True)
    objective = adversarial_objective(network, l1=0, gan=0.5)
    objective.tokenizer_loss(images, reconstruction, NOTHING, step=0).total.backward()
    assert all(parameter.grad is None for parameter in network.parameters())

    twin = reconstruction.detach().clone().requires_grad_()
    (-0.5 * network(twin).mean()).backward()
    torch.testing.assert_close(reconstruction.grad, twin.grad)
    assert reconstruction.grad.abs().sum() > 0


@pytest.mark.parametrize("fails", [False, True])
def test_discriminator_learns_again_after_the_tokenizers_turn(images, fails):
    network = MustNotRun() if fails else discriminator()
    network.frozen, network.learning = nn.Parameter(torch.ones(1), False), nn.Parameter(torch.ones(1))
    objective = adversarial_objective(network)
    try:
        objective.tokenizer_loss(images, images, NOTHING, step=0)
    except AssertionError:
        assert fails
    assert [name for name, p in network.named_parameters() if not p.requires_grad] == ["frozen"]


@pytest.mark.parametrize(("step", "joins"), [(0, False), (9, False), (10, True), (11, True)])
def test_discriminator_joins_at_its_start_and_is_not_called_before(images, step, joins):
    weights = LossWeights(lpips=0, discriminator_start=10)
    objective = Objective(weights, discriminator=discriminator() if joins else MustNotRun())
    terms = objective.tokenizer_loss(images, images, NOTHING, step=step).terms
    assert objective.adversarial(step) is joins
    assert list(terms) == ["quantizer", "l1"] + ["gan", "gan_weight"] * joins


def test_networks_of_weight_zero_are_not_called(images):
    def must_not_run(*_: Tensor) -> Tensor:
        raise AssertionError

    weights = LossWeights(lpips=0, gan=0, discriminator_start=0, adaptive_gan=True)
    objective = Objective(weights, perceptual=must_not_run, discriminator=MustNotRun())
    loss = objective.tokenizer_loss(images, images + 0.25, torch.tensor(1.0), step=0)
    assert loss.total.item() == pytest.approx(1.25)
    assert list(loss.terms) == ["quantizer", "l1"]
    assert not objective.adversarial(10**9)


# The discriminator's turn.


def test_discriminator_loss_is_the_hinge_of_its_verdicts(images):
    network, reconstruction = discriminator(), torch.randn(SHAPE)
    loss = adversarial_objective(network).discriminator_loss(images, reconstruction)
    real, fake = (network(x).detach().double().numpy() for x in (images, reconstruction))
    total = np.maximum(0, 1 - real).mean() + np.maximum(0, 1 + fake).mean()
    expected = {"logits_real": real.mean(), "logits_fake": fake.mean(), "discriminator": total}
    assert {name: term.item() for name, term in loss.terms.items()} == pytest.approx(expected, rel=1e-5)
    assert loss.total.item() == pytest.approx(total, rel=1e-5)


def test_discriminator_loss_does_not_reach_the_decoder(images, decoder):
    network = discriminator()
    adversarial_objective(network).discriminator_loss(images, decoder(images)).total.backward()
    assert all(parameter.grad is None for parameter in decoder.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters() if parameter.ndim > 1)


# Precision.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_losses_are_float32_at_least(images, dtype):
    expected = torch.promote_types(dtype, torch.float32)
    images, reconstruction = images.to(dtype), torch.randn(SHAPE).to(dtype)
    weights = LossWeights(discriminator_start=0)
    objective = Objective(weights, perceptual=squared_distance, discriminator=discriminator().to(expected))
    tokenizer_loss = objective.tokenizer_loss(images, reconstruction, images.new_ones(()), step=0)
    for loss in (tokenizer_loss, objective.discriminator_loss(images, reconstruction)):
        assert {tensor.dtype for tensor in (loss.total, *loss.terms.values())} == {expected}


def test_under_autocast_the_losses_are_float32_and_gradients_flow(images, decoder):
    objective = adversarial_objective(discriminator())
    with torch.autocast("cpu", torch.bfloat16):
        reconstruction = decoder(images)
        assert reconstruction.dtype == torch.bfloat16
        loss = objective.tokenizer_loss(images, reconstruction, NOTHING, step=0)
        other = objective.discriminator_loss(images, reconstruction)
    assert {t.dtype for t in (*loss.terms.values(), *other.terms.values())} == {torch.float32}
    loss.total.backward()
    assert decoder.weight.grad.abs().sum() > 0
    expected = (images - reconstruction.float()).abs().mean().item()
    assert loss.terms["l1"].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("logits", [torch.full((3000,), 1.01), torch.full((3000,), 100.0)])
def test_a_mean_over_many_half_precision_logits_is_exact(logits):
    rough = logits.bfloat16()
    value = rough[0].item()
    assert hinge_generator_loss(rough).item() == pytest.approx(-value, rel=1e-6)
    assert hinge_discriminator_loss(-rough, rough).item() == pytest.approx(2 + 2 * value, rel=1e-6)


# Refusals.


@pytest.mark.parametrize("name", ["l1", "lpips", "gan", "discriminator_start"])
def test_negative_weights_are_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 0, got -1"):
        LossWeights(**{name: -1})


def test_lpips_on_a_part_of_the_batch_is_that_of_its_first_images(images):
    reconstruction = torch.zeros_like(images)
    options = {"perceptual": squared_distance, "discriminator": MustNotRun()}
    whole, part = (
        Objective(LossWeights(lpips_images=count, gan=0), **options).tokenizer_loss(
            images, reconstruction, NOTHING, step=0
        )
        for count in (None, 1)
    )
    assert part.terms["lpips"] == squared_distance(images[:1], reconstruction[:1])
    assert part.terms["lpips"] != whole.terms["lpips"]
    assert part.terms["l1"] == whole.terms["l1"]
    with pytest.raises(LGQError, match="`lpips_images` must be at least 1, got 0"):
        LossWeights(lpips_images=0)
