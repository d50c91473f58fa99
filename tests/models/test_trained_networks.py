"""Laws of the networks that training updates: the autoencoder and the discriminator; `in_eval_mode`."""

from dataclasses import replace

import pytest
import torch
from image_networks import TINY, Autoencoder, gradients
from torch import nn

from lgq.models import in_eval_mode
from lgq.models.discriminator import PatchDiscriminator

NETWORKS = {
    "autoencoder": lambda: Autoencoder(TINY),
    "checkpointing": lambda: Autoencoder(replace(TINY, checkpointing=True)),
    "discriminator": lambda: PatchDiscriminator(base_width=4),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> nn.Module:
    return NETWORKS[request.param]()


def test_gradient_reaches_every_parameter_and_every_pixel(network):
    images = torch.randn(2, 3, 32, 32, requires_grad=True)
    grads = gradients(network, images)
    assert grads.keys() == dict(network.named_parameters()).keys()
    assert all(gradient.abs().sum() > 0 for gradient in grads.values())
    assert images.grad is not None
    assert (images.grad.abs().sum(1) > 0).all()


def test_channels_last_gives_equal_values_and_gradients_and_stays(network):
    images = torch.randn(2, 3, 32, 24)
    plain, plain_gradients = network(images), gradients(network, images)
    network, images = (part.to(memory_format=torch.channels_last) for part in (network, images))
    last = network(images)
    torch.testing.assert_close(last, plain)
    torch.testing.assert_close(gradients(network, images), plain_gradients)
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("without_shape_checks")
def test_compiles_into_one_graph(network):
    images = torch.randn(2, 3, 24, 32)
    # aot_eager traces both passes as inductor does, without its C++ compiler.
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    expected = {f"_orig_mod.{name}": gradient for name, gradient in gradients(network, images).items()}
    torch.testing.assert_close(gradients(compiled, images), expected)


def test_bf16_autocast_stays_near_float32(network):
    images = torch.randn(2, 3, 32, 32)
    exact = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        rough = network(images)
        rough.float().square().mean().backward()
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.1, rtol=0.1)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def modes(module: nn.Module) -> set[bool]:
    return {part.training for part in module.modules()}


@pytest.mark.parametrize("training", [True, False])
def test_every_part_is_in_eval_mode_and_then_as_before(training):
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5))).train(training)
    with in_eval_mode(module):
        with in_eval_mode(module):
            assert modes(module) == {False}
        assert modes(module) == {False}
    assert modes(module) == {training}
    with pytest.raises(RuntimeError, match="inside"), in_eval_mode(module):
        raise RuntimeError("inside")
    assert modes(module) == {training}
