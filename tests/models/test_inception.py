"""The FID network is the published one, with its preprocessing."""

import io

import pytest
import torch
import torch.nn.functional as F
from image_networks import photograph
from torch import Tensor

from lgq import weights
from lgq.models.inception import InceptionV3
from lgq.weights.convert import inception_with_classifier


@pytest.fixture(scope="module")
def network() -> InceptionV3:
    return InceptionV3(classifier=True)


@pytest.fixture(scope="module")
def images() -> Tensor:
    levels = torch.randint(256, (2, 3, 20, 24), generator=torch.Generator().manual_seed(0))
    return levels / 127.5 - 1


@pytest.fixture(scope="module")
def features(network: InceptionV3, images: Tensor) -> Tensor:
    return network(images)


class PlainInception:
    """The network with the names of pytorch-fid; draws the weights of a layer at its first use.

    A layer is written as width:kernel/stride: 1x1 without a kernel, padded to the same size without a stride.
    """

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}
        self.generator = torch.Generator().manual_seed(1)

    def conv(self, name: str, x: Tensor, layer: str) -> Tensor:
        shape, _, stride = layer.partition("/")
        width, _, sides = shape.partition(":")
        kernel = [int(side) for side in (sides or "1x1").split("x")]
        weight = torch.randn(int(width), x.shape[1], *kernel, generator=self.generator)
        weight *= (2 / weight[0].numel()) ** 0.5
        mean, bias = 0.1 * torch.randn(2, len(weight), generator=self.generator)
        var = 0.5 + torch.rand(len(weight), generator=self.generator)
        norm = {"weight": torch.ones(len(weight)), "bias": bias, "running_mean": mean, "running_var": var}
        self.state[f"{name}.conv.weight"] = weight
        self.state |= {f"{name}.bn.{kind}": value for kind, value in norm.items()}
        padding = 0 if stride else [side // 2 for side in kernel]
        x = F.conv2d(x, weight, padding=padding, stride=int(stride or 1))
        x = (x - mean[:, None, None]) / (var[:, None, None] + 0.001).sqrt() + bias[:, None, None]
        return x.clamp(min=0)

    def mixed(self, place: str, x: Tensor, pooled: Tensor, pool: str = "", **branches: str) -> Tensor:
        """Branches side by side; layers of a branch in a row, or side by side where "|" joins them."""
        parts = []
        for branch, layers in branches.items():
            part, single = x, " " not in layers
            for step, layer in enumerate(layers.split(), 1):
                name = f"Mixed_{place}.{branch}" if single else f"Mixed_{place}.{branch}_{step}"
                sides = zip(("a", "b") if "|" in layer else ("",), layer.split("|"), strict=True)
                part = torch.cat([self.conv(f"{name}{side}", part, kernel) for side, kernel in sides], 1)
            parts.append(part)
        parts.append(self.conv(f"Mixed_{place}.branch_pool", pooled, pool) if pool else pooled)
        return torch.cat(parts, 1)

    @staticmethod
    def average(x: Tensor) -> Tensor:
        """Over the neighbours that lie inside the image."""
        ones = torch.ones_like(x[:1, :1])
        return F.avg_pool2d(x, 3, 1, 1) / F.avg_pool2d(ones, 3, 1, 1)

    def features(self, x: Tensor) -> Tensor:
        x = self.conv("Conv2d_1a_3x3", x, "32:3x3/2")
        x = self.conv("Conv2d_2a_3x3", x, "32:3x3/1")
        x = F.max_pool2d(self.conv("Conv2d_2b_3x3", x, "64:3x3"), 3, 2)
        x = self.conv("Conv2d_3b_1x1", x, "80")
        x = F.max_pool2d(self.conv("Conv2d_4a_3x3", x, "192:3x3/1"), 3, 2)
        block = {"branch1x1": "64", "branch5x5": "48 64:5x5", "branch3x3dbl": "64 96:3x3 96:3x3"}
        for place, pool in (("5b", "32"), ("5c", "64"), ("5d", "64")):
            x = self.mixed(place, x, self.average(x), pool, **block)
        block = {"branch3x3": "384:3x3/2", "branch3x3dbl": "64 96:3x3 96:3x3/2"}
        x = self.mixed("6a", x, F.max_pool2d(x, 3, 2), **block)
        for place, w in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
            twice = f"{w} {w}:7x1 {w}:1x7 {w}:7x1 192:1x7"
            block = {"branch1x1": "192", "branch7x7": f"{w} {w}:1x7 192:7x1", "branch7x7dbl": twice}
            x = self.mixed(place, x, self.average(x), "192", **block)
        block = {"branch3x3": "192 320:3x3/2", "branch7x7x3": "192 192:1x7 192:7x1 192:3x3/2"}
        x = self.mixed("7a", x, F.max_pool2d(x, 3, 2), **block)
        split = "384:1x3|384:3x1"
        block = {"branch1x1": "320", "branch3x3": f"384 {split}", "branch3x3dbl": f"448 384:3x3 {split}"}
        x = self.mixed("7b", x, self.average(x), "192", **block)
        return self.mixed("7c", x, F.max_pool2d(x, 3, 1, 1), "192", **block).mean((2, 3))


def plain_preprocessing(images: Tensor) -> Tensor:
    """Bytes, then each of 299 x 299 pixels from its four neighbours, half a pixel off the corner."""
    x = torch.floor((images.double() + 1) * 127.5 + 0.5).clamp(0, 255)
    for axis in (2, 3):
        size = x.shape[axis]
        place = ((torch.arange(299, dtype=torch.float64) + 0.5) * size / 299 - 0.5).clamp(0, size - 1)
        low = place.floor().long()
        share = (place - low).view([-1 if dim == axis else 1 for dim in range(4)])
        high = (low + 1).clamp(max=size - 1)
        x = x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share
    return ((x - 128) / 128).float()


def test_the_full_file_gives_the_features_of_a_plain_implementation(network, images):
    plain = PlainInception()
    expected = plain.features(plain_preprocessing(images[:1]))
    plain.state["fc.weight"] = torch.randn(1008, 2048)
    plain.state["fc.bias"] = torch.randn(1008)
    buffer = io.BytesIO()
    torch.save(plain.state, buffer)
    loaded = InceptionV3(classifier=True)
    loaded.load_state_dict(inception_with_classifier(buffer.getvalue()))
    actual = loaded(images[:1])
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
    torch.testing.assert_close(loaded.logits(actual), actual @ plain.state["fc.weight"].T)


def test_values_are_rounded_and_clamped_to_bytes(network, images, features):
    within = images + (torch.rand_like(images) - 0.5) * 0.98 / 127.5
    assert torch.equal(network(within), features)
    assert not torch.equal(network(images.roll(1, 2)), features)
    extreme = torch.tensor([-1.0, 1.0]).repeat(3 * 8 * 4).view(1, 3, 8, 8)
    assert torch.equal(network(3 * extreme), network(extreme))


def test_logits_are_float32_under_autocast_and_need_the_classifier(network, features):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network.logits(features)
    assert torch.equal(logits, network.logits(features))
    with pytest.raises(ValueError, match=r"InceptionV3\.pretrained\(classifier=True\)"):
        InceptionV3().logits(features)


def test_there_are_94_convolutions_and_the_published_number_of_weights(network):
    state = network.state_dict()
    assert sum(name.endswith(".beta") for name in state) == 94
    assert sum(tensor.numel() for name, tensor in state.items() if name != "classifier") == 21_802_784


def test_published_weights_give_the_features_of_the_original_file():
    """Reference values were computed with the TorchScript file."""
    try:
        network = InceptionV3.pretrained()
    except weights.WeightsError as absent:
        pytest.skip(str(absent))
    crops = (photograph("chelsea.png", (100, 0, 356, 256)), photograph("coffee.png", (200, 100, 456, 356)))
    actual = network(torch.cat(crops))
    cat = [0.4669937, 0.7462641, 0.5227030, 0.1899885, 0.1474324, 0.1418307]
    cup = [0.0894567, 0.4645536, 0.5719354, 0.4382905, 0.0988079, 0.2824461]
    torch.testing.assert_close(actual[:, :6], torch.tensor([cat, cup]), rtol=1e-4, atol=1e-5)
    assert actual.mean(1).tolist() == pytest.approx([0.2167116, 0.1954019], rel=1e-4)
    assert network.convention.weights_sha256 == weights.SETS["inception-fid"].fingerprint.sha256
