"""Laws of the patch discriminator."""

import pytest
import torch
from torch import nn

from lgq.models.discriminator import PatchDiscriminator


def convolutions(**settings: int) -> list[nn.Conv2d]:
    with torch.device("meta"):
        return [part for part in PatchDiscriminator(**settings).modules() if isinstance(part, nn.Conv2d)]


def test_layers_and_parameters_are_the_papers():
    layers = convolutions()
    assert [layer.out_channels for layer in layers] == [64, 128, 256, 512, 1]
    assert [layer.stride[0] for layer in layers] == [2, 2, 2, 1, 1]
    assert [layer.bias is not None for layer in layers] == [True, False, False, False, True]
    assert sum(p.numel() for p in PatchDiscriminator().parameters()) == 2_765_633
    deep = convolutions(base_width=4, layers=5)
    assert [layer.out_channels for layer in deep] == [4, 8, 16, 32, 32, 32, 1], "at most 8 x base_width"


@pytest.mark.parametrize(
    ("layers", "size", "patches"),
    [(3, (64, 64), (6, 6)), (3, (24, 40), (1, 3)), (1, (6, 9), (1, 2)), (4, (48, 49), (1, 1))],
)
def test_images_become_a_grid_of_logits(layers, size, patches):
    logits = PatchDiscriminator(base_width=4, layers=layers)(torch.randn(2, 3, *size))
    assert logits.shape == (2, 1, *patches)


def test_a_logit_sees_a_patch_of_70_pixels():
    discriminator = PatchDiscriminator(base_width=4).eval()
    images = torch.randn(1, 3, 128, 128, requires_grad=True)
    discriminator(images)[0, 0, 7, 7].backward()
    assert images.grad is not None
    visible = images.grad[0].abs().sum(0).nonzero()
    assert (visible.amax(0) - visible.amin(0) + 1).tolist() == [70, 70]


def test_initial_weights_have_a_standard_deviation_of_two_hundredths():
    for module in PatchDiscriminator().modules():
        if isinstance(module, nn.Conv2d) and module.out_channels > 1:
            assert module.weight.mean().item() == pytest.approx(0, abs=0.003)
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.mean().item() == pytest.approx(1, abs=0.01)
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.3)
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d) and module.bias is not None:
            assert not module.bias.any()


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"base_width": 0}, (3, 64, 64), "`base_width` must be at least 1, got 0"),
        ({"layers": -1}, (3, 64, 64), "`layers` must be at least 1, got -1"),
        ({"base_width": 4}, (3, 23, 64), "at least 24 pixels, got 23 x 64: use .* fewer layers"),
        ({"base_width": 4}, (3, 64, 16), "at least 24 pixels, got 64 x 16"),
        ({"base_width": 4}, (1, 32, 32), r"\(b, 3, h, w\), got shape \(1, 1, 32, 32\)"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_bad_settings_and_images_raise_an_error(settings, shape, message):
    with pytest.raises(ValueError, match=message):
        PatchDiscriminator(**settings)(torch.randn(1, *shape))
