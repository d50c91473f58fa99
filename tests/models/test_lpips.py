"""LPIPS is its published formula, on frozen weights."""

import pytest
import torch
import torch.nn.functional as F
from image_networks import kept_bytes, photograph
from torch import Tensor

from lgq import weights
from lgq.models.lpips import LPIPS


@pytest.fixture(scope="module", params=["vgg16", "alex"])
def network(request: pytest.FixtureRequest) -> LPIPS:
    return LPIPS(request.param)


def pair(network: LPIPS, count: int = 2, extra: int = 0) -> tuple[Tensor, Tensor]:
    side = network.architecture.min_side
    shape = (count, 3, side, side + extra)
    return torch.rand(shape) * 2 - 1, torch.rand(shape) * 2 - 1


def plain_stages(images: Tensor, state: dict[str, Tensor]) -> list[Tensor]:
    """relu1_2, 2_2, 3_3, 4_3, 5_3 of VGG16, or the five ReLUs of AlexNet: written from the papers."""
    mean, std = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    x = ((images.movedim(1, -1).double() - mean) / std).movedim(-1, 1)
    if "convolutions.12.weight" in state:
        plan, taps = "64 64 M2 128 128 M2 256 256 256 M2 512 512 512 M2 512 512 512", (1, 3, 6, 9, 12)
    else:
        plan, taps = "64/4 M3 192 M3 384 256 256", (0, 1, 2, 3, 4)
    stages, index = [], 0
    for step in plan.split():
        if step[0] == "M":
            x = F.max_pool2d(x, int(step[1]), 2)
            continue
        weight, bias = (state[f"convolutions.{index}.{kind}"].double() for kind in ("weight", "bias"))
        padding = {11: 2, 5: 2, 3: 1}[weight.shape[-1]]
        x = F.conv2d(x, weight, bias, stride=4 if "/4" in step else 1, padding=padding).clamp(min=0)
        if index in taps:
            stages.append(x)
        index += 1
    return stages


def plain_lpips(x: Tensor, y: Tensor, state: dict[str, Tensor]) -> Tensor:
    distance = torch.zeros(len(x), dtype=torch.float64)
    for index, (a, b) in enumerate(zip(plain_stages(x, state), plain_stages(y, state), strict=True)):
        a, b = (x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10) for x in (a, b))
        weighted = (a - b) ** 2 * state[f"head_{index}"].double()[:, None, None]
        distance += weighted.sum(1).mean((1, 2))
    return distance


def test_distance_is_the_published_formula(network):
    x, y = pair(network, extra=9)
    expected = plain_lpips(x, y, network.state_dict())
    torch.testing.assert_close(network(x, y).double(), expected, rtol=1e-4, atol=1e-6)
    assert (expected > 0.01).all()


def test_distances_are_zero_for_equal_images_and_symmetric(network):
    x, y = pair(network)
    assert network(x, x).tolist() == [0, 0]
    assert torch.equal(network(x, y), network(y, x))


def test_gradients_reach_both_images_and_are_those_of_the_formula(network):
    x, y = (image.requires_grad_() for image in pair(network))
    actual = torch.autograd.grad(network(x, y).sum(), (x, y))
    expected = torch.autograd.grad(plain_lpips(x, y, network.state_dict()).sum(), (x, y))
    for ours, plain in zip(actual, expected, strict=True):
        assert (ours - plain).norm() < 1e-3 * plain.norm()


def test_gradients_stay_finite_in_every_layer_where_all_features_are_dead():
    network = LPIPS("alex")
    for name, buffer in network.named_buffers():
        if name.endswith("bias"):
            buffer.fill_(-1e4)
    x, y = (image.requires_grad_() for image in pair(network, count=1))
    with torch.autograd.set_detect_anomaly(True):
        network(x, y).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_images_without_gradients_store_nothing_for_the_backward_pass():
    network = LPIPS("alex")
    x, y = pair(network)
    assert kept_bytes(network, x, y) == 0
    first = kept_bytes(network, x.clone().requires_grad_(), y)
    both = kept_bytes(network, x.clone().requires_grad_(), y.clone().requires_grad_())
    assert first < 0.7 * both


def test_random_weights_depend_on_the_seed_and_not_on_the_global_generator():
    before = torch.get_rng_state()
    first, repeated, reseeded = LPIPS("alex"), LPIPS("alex"), LPIPS("alex", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.head_0, repeated.head_0)
    assert not torch.equal(first.head_0, reseeded.head_0)
    assert first.weights_sha256 is None


@pytest.mark.usefixtures("without_shape_checks")
def test_pairs_that_do_not_fit_raise_an_error(network):
    x, y = pair(network)
    with pytest.raises(ValueError, match=r"of equal shape, got \(2, 3, .* and \(1, 3,"):
        network(x, y[:1])
    with pytest.raises(ValueError, match=f"at least {network.architecture.min_side} pixels"):
        network(x[..., 1:], y[..., 1:])


@pytest.mark.parametrize(
    ("net", "expected"), [("vgg16", [0.31865, 0.57827, 0.72829]), ("alex", [0.11860, 0.48084, 0.69777])]
)
def test_published_weights_give_the_published_distances(net, expected):
    try:
        network = LPIPS.pretrained(net)
    except weights.WeightsError as absent:
        pytest.skip(str(absent))
    image = photograph("chelsea.png", (100, 20, 228, 148))
    blurred = [F.interpolate(F.avg_pool2d(image, size), scale_factor=size) for size in (2, 4, 8)]
    distances = [network(image, blurry).item() for blurry in blurred]
    assert distances == pytest.approx(expected, rel=1e-3)
    assert distances == sorted(distances)
    assert network.weights_sha256 == weights.SETS[f"lpips-{net}"].fingerprint.sha256


def test_convolutions_in_bf16_change_distances_by_their_rounding_only(network, monkeypatch):
    monkeypatch.setattr(weights, "load", lambda name: network.state_dict())
    net = "vgg16" if len(network.convolutions) > 5 else "alex"
    rounded = LPIPS.pretrained(net, dtype=torch.bfloat16)
    x, y = pair(network)
    y.requires_grad_()
    distances = rounded(x, y)
    assert distances.dtype == torch.float32
    assert torch.allclose(distances, network(x, y), rtol=0.05)
    assert not torch.equal(distances, network(x, y))
    (gradient,) = torch.autograd.grad(distances.sum(), y)
    assert gradient.dtype == torch.float32
    assert gradient.isfinite().all()
    assert {buffer.dtype for name, buffer in rounded.named_buffers() if "head" in name} == {torch.float32}
