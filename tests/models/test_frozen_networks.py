"""Laws of the networks that measure images and never learn: Inception and LPIPS."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lgq import weights
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS

Measure = Callable[[nn.Module, Tensor], Tensor]
"""Values of each image: its features, or its distance to its mirror image."""
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Measure]] = {
    "inception": (lambda: InceptionV3(classifier=True), lambda network, images: network(images)),
    "vgg16": (lambda: LPIPS("vgg16"), lambda network, images: network(images, images.flip(3))),
    "alex": (lambda: LPIPS("alex"), lambda network, images: network(images, images.flip(3))),
}


@pytest.fixture(scope="module", params=NETWORKS)
def measured(request: pytest.FixtureRequest) -> tuple[nn.Module, Measure, Tensor, Tensor]:
    """A network, how to measure with it, images, and their values."""
    build, measure = NETWORKS[request.param]
    network = build()
    images = torch.randint(256, (2, 3, 40, 44), generator=torch.Generator().manual_seed(0)) / 127.5 - 1
    return network, measure, images, measure(network, images)


def test_images_are_independent(measured):
    network, measure, images, values = measured
    torch.testing.assert_close(measure(network, images[1:]), values[1:], rtol=1e-4, atol=1e-4)
    assert measure(network, images[:0]).shape == (0, *values.shape[1:])


def test_memory_format_changes_nothing(measured):
    network, measure, images, values = measured
    last = measure(network, images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_half_precision_images_are_computed_in_float32(measured, dtype):
    network, measure, images, _ = measured
    half = images[:1].to(dtype)
    expected = measure(network, half.float())
    with torch.autocast("cpu", dtype=dtype):
        inside = measure(network, half)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)
    assert torch.equal(measure(network, half), expected)


def test_the_network_is_frozen_in_every_mode(measured):
    network, measure, images, values = measured
    assert list(network.parameters()) == []
    trained = measure(network.train().requires_grad_(True), images)
    assert torch.equal(trained, values)
    assert not trained.requires_grad


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_images_raise_an_error(measured):
    network, measure, images, _ = measured
    for wrong, message in (
        (images.to(torch.uint8), "float in"),
        (images[:, :1], r"RGB .*\(2, 1, 40, 44\)"),
        (images[..., :0], "RGB"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(network, wrong)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (InceptionV3.pretrained, "FID needs weights .* run `lgq weights fetch"),
        (LPIPS.pretrained, "LPIPS needs weights .* run `lgq weights fetch"),
        (lambda: InceptionV3.pretrained(classifier=True), "Inception Score needs .* run `lgq weights import"),
    ],
)
def test_missing_weights_are_named(load, message, tmp_path, monkeypatch):
    monkeypatch.setenv(weights.CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(weights.WeightsError, match=message):
        load()
