"""Open-MAGVIT2: its published names and arithmetic, as plain functions over a state_dict, and the import."""

import pytest
import torch
import torch.nn.functional as F
from command_line import lgq
from safetensors.torch import save_file
from torch import Tensor

from lgq.config import ConfigError
from lgq.errors import LGQError
from lgq.interop.checkpoints import import_tokenizer
from lgq.models.magvit2 import MAGVIT2Backbone
from lgq.tokenizer import Tokenizer, load_tokenizer

WIDTHS, BLOCKS, MIDDLE, BITS = (32, 32, 64), 2, 3, 5
State = dict[str, Tensor]


def checkpoint() -> State:
    """Random tensors with the names and shapes of a small network of Open-MAGVIT2."""
    generator = torch.Generator().manual_seed(3)
    state: State = {}

    def draw(name: str, *shape: int, scale: float, shift: float = 0.0) -> None:
        state[name] = shift + scale * torch.randn(shape, generator=generator)

    def conv(name: str, inputs: int, outputs: int, side: int = 3, *, bias: bool = True) -> None:
        draw(f"{name}.weight", outputs, inputs, side, side, scale=(inputs * side**2) ** -0.5)
        if bias:
            draw(f"{name}.bias", outputs, scale=0.1)

    def norm(name: str, width: int) -> None:
        draw(f"{name}.weight", width, scale=0.1, shift=1.0)
        draw(f"{name}.bias", width, scale=0.1)

    def block(name: str, inputs: int, outputs: int) -> None:
        norm(f"{name}.norm1", inputs)
        norm(f"{name}.norm2", outputs)
        conv(f"{name}.conv1", inputs, outputs, bias=False)
        conv(f"{name}.conv2", outputs, outputs, bias=False)
        if inputs != outputs:
            conv(f"{name}.nin_shortcut", inputs, outputs, 1, bias=False)

    conv("encoder.conv_in", 3, WIDTHS[0], bias=False)
    before = WIDTHS[0]
    for level, width in enumerate(WIDTHS):
        for number in range(BLOCKS):
            block(f"encoder.down.{level}.block.{number}", before, width)
            before = width
        if level < len(WIDTHS) - 1:
            conv(f"encoder.down.{level}.downsample", width, width)
    conv("decoder.conv_in", BITS, before)
    for number in range(MIDDLE):
        block(f"encoder.mid_block.{number}", before, before)
        block(f"decoder.mid_block.{number}", before, before)
    norm("encoder.norm_out", before)
    conv("encoder.conv_out", before, BITS, 1)
    for level, width in reversed(list(enumerate(WIDTHS))):
        for layer in ("gamma", "beta"):
            draw(f"decoder.adaptive.{level}.{layer}.weight", before, BITS, scale=BITS**-0.5)
            draw(f"decoder.adaptive.{level}.{layer}.bias", before, scale=0.5)
        for number in range(BLOCKS):
            block(f"decoder.up.{level}.block.{number}", before, width)
            before = width
        if level:
            conv(f"decoder.up.{level}.upsample.conv1", width, 4 * width)
    norm("decoder.norm_out", before)
    conv("decoder.conv_out", before, 3)
    draw("loss.discriminator.main.0.weight", 4, 3, 4, 4, scale=1.0)
    return state


class Network:
    """Computes what the published code computes, and shares no code with the package."""

    def __init__(self, state: State):
        self.state = state

    def conv(self, name: str, x: Tensor, **options: int) -> Tensor:
        return F.conv2d(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"), **options)

    @staticmethod
    def normalized(x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), 32, -1)
        centred = grouped - grouped.mean(-1, keepdim=True)
        return (centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()).reshape(x.shape)

    def norm_silu(self, name: str, x: Tensor) -> Tensor:
        weight, bias = (self.state[f"{name}.{kind}"][:, None, None] for kind in ("weight", "bias"))
        y = self.normalized(x) * weight + bias
        return y * torch.sigmoid(y)

    def block(self, name: str, x: Tensor) -> Tensor:
        y = x
        for number in (1, 2):
            y = self.conv(f"{name}.conv{number}", self.norm_silu(f"{name}.norm{number}", y), padding=1)
        has_shortcut = f"{name}.nin_shortcut.weight" in self.state
        return y + (self.conv(f"{name}.nin_shortcut", x) if has_shortcut else x)

    def latents(self, images: Tensor) -> Tensor:
        x = self.conv("encoder.conv_in", images, padding=1)
        for level in range(len(WIDTHS)):
            for number in range(BLOCKS):
                x = self.block(f"encoder.down.{level}.block.{number}", x)
            if level < len(WIDTHS) - 1:
                x = self.conv(f"encoder.down.{level}.downsample", x, stride=2, padding=1)
        for number in range(MIDDLE):
            x = self.block(f"encoder.mid_block.{number}", x)
        return self.conv("encoder.conv_out", self.norm_silu("encoder.norm_out", x))

    def tokens(self, images: Tensor) -> Tensor:
        bits = (self.latents(images) > 0).long()
        return sum(bits[:, i] << i for i in range(BITS))

    def images(self, tokens: Tensor) -> Tensor:
        codes = torch.stack([(tokens >> i & 1) * 2.0 - 1.0 for i in range(BITS)], 1)
        values = codes.flatten(2)
        mean = values.sum(2) / values.shape[2]
        variance = (values - mean[..., None]).square().sum(2) / (values.shape[2] - 1)
        x = self.conv("decoder.conv_in", codes, padding=1)
        for number in range(MIDDLE):
            x = self.block(f"decoder.mid_block.{number}", x)
        for level in reversed(range(len(WIDTHS))):
            place = f"decoder.adaptive.{level}"
            scale = (variance + 1e-6).sqrt() @ self.state[f"{place}.gamma.weight"].T
            shift = mean @ self.state[f"{place}.beta.weight"].T
            scale, shift = scale + self.state[f"{place}.gamma.bias"], shift + self.state[f"{place}.beta.bias"]
            x = scale[..., None, None] * self.normalized(x) + shift[..., None, None]
            for number in range(BLOCKS):
                x = self.block(f"decoder.up.{level}.block.{number}", x)
            if level:
                x = self.doubled(self.conv(f"decoder.up.{level}.upsample.conv1", x, padding=1))
        return self.conv("decoder.conv_out", self.norm_silu("decoder.norm_out", x), padding=1)

    @staticmethod
    def doubled(x: Tensor) -> Tensor:
        """Quarters of the channels go to the even and odd rows and columns."""
        width = x.shape[1] // 4
        out = x.new_zeros(len(x), width, 2 * x.shape[2], 2 * x.shape[3])
        for row in range(2):
            for column in range(2):
                first = (2 * row + column) * width
                out[:, :, row::2, column::2] = x[:, first : first + width]
        return out


def pictures() -> Tensor:
    return torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_an_imported_tokenizer_gives_the_tokens_and_images_of_its_network():
    state, images = checkpoint(), pictures()
    tokenizer, network = import_tokenizer(state, "magvit2"), Network(state)
    assert tokenizer.backbone == MAGVIT2Backbone(
        widths=WIDTHS, blocks=BLOCKS, middle_blocks=MIDDLE, latent_channels=BITS
    )
    torch.testing.assert_close(tokenizer.encoder(images), network.latents(images), rtol=1e-4, atol=1e-4)
    tokens = tokenizer.encode(images)
    assert torch.equal(tokens, network.tokens(images))
    assert len(tokens.unique()) > 2
    expected = network.images(tokens)
    torch.testing.assert_close(tokenizer(images).reconstruction, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tokenizer.decode(tokens), expected.clamp(-1, 1), rtol=1e-4, atol=1e-4)


def test_moving_averages_take_the_place_of_the_weights():
    state = checkpoint()
    averages = {f"model_ema.{name.replace('.', '')}": 0.5 * tensor for name, tensor in state.items()}
    averaged = import_tokenizer(state | averages, "magvit2")
    halved = import_tokenizer({name: 0.5 * tensor for name, tensor in state.items()}, "magvit2")
    assert averaged.fingerprint() == halved.fingerprint()


def test_the_command_writes_a_directory_that_loads_again(tmp_path, capsys):
    save_file(checkpoint(), tmp_path / "model.safetensors")
    lgq("import", "magvit2", tmp_path / "model.safetensors", "--out", tmp_path / "imported")
    assert "32 codes, one token per 4 x 4 pixels" in capsys.readouterr().err
    loaded = load_tokenizer(tmp_path / "imported")
    assert isinstance(loaded.backbone, MAGVIT2Backbone)
    assert loaded.fingerprint() == import_tokenizer(checkpoint(), "magvit2").fingerprint()


def test_the_defaults_have_the_shapes_of_the_published_model():
    with torch.device("meta"):
        state = Tokenizer(MAGVIT2Backbone(), "lfq", 2**18).state_dict()
    assert state["encoder.conv_out.weight"].shape == (18, 512, 1, 1)
    assert state["decoder.up.4.upsample.conv1.weight"].shape == (2048, 512, 3, 3)
    assert state["decoder.adaptive.0.gamma.weight"].shape == (128, 18)
    assert state["decoder.adaptive.3.gamma.weight"].shape == (512, 18)
    assert state["encoder.down.4.block.3.conv2.weight"].shape == (512, 512, 3, 3)
    assert "encoder.down.4.downsample.weight" not in state
    assert "decoder.up.0.upsample.conv1.weight" not in state


@pytest.mark.parametrize("grid", [(1, 1), (2, 3)])
def test_every_size_that_the_factor_divides_is_rebuilt_and_learns(grid):
    backbone = MAGVIT2Backbone(widths=(8, 16), blocks=1, middle_blocks=0, groups=4, latent_channels=3)
    tokenizer = Tokenizer(backbone, "lfq", 8)
    images = torch.rand(2, 3, *(2 * side for side in grid))
    reconstruction, quantized = tokenizer(images)
    assert reconstruction.shape == images.shape
    (reconstruction.square().mean() + quantized.loss).backward()
    assert all(torch.isfinite(p.grad).all() for p in tokenizer.parameters() if p.grad is not None)


def test_the_most_values_per_pixel_are_those_of_a_layer():
    backbone = MAGVIT2Backbone(widths=(8, 64), groups=4)
    assert backbone.values_per_pixel == 64
    assert backbone.reach is None


def changed(**changes: Tensor | None) -> State:
    state = checkpoint() | {name: value for name, value in changes.items() if value is not None}
    return {name: value for name, value in state.items() if changes.get(name, value) is not None}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: {}, "has no tensor encoder.down.0.block.0.conv1.weight: is it a checkpoint of magvit2"),
        (lambda: changed(**{"encoder.conv_out.weight": None}), "no tensor encoder.conv_out.weight"),
        (lambda: changed(**{"encoder.conv_out.weight": torch.zeros(61, 64, 1, 1)}), "61 bits.*1 to 60"),
        (lambda: changed(**{"decoder.conv_in.bias": None}), "no tensor decoder.conv_in.bias"),
        (lambda: changed(**{"decoder.conv_in.bias": torch.zeros(3)}), r"\(3,\) and torch.float32 instead"),
        (
            lambda: changed(**{"encoder.conv_in.bias": torch.zeros(32)}),
            "a tensor encoder.conv_in.bias, which",
        ),
    ],
)
def test_weights_of_another_network_are_refused_in_one_sentence(state, message):
    with pytest.raises(LGQError, match=message) as refusal:
        import_tokenizer(state(), "magvit2")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": 0}, "`blocks` must be at least 1, got 0"),
        ({"middle_blocks": -1}, "`middle_blocks` must be at least 0, got -1"),
        ({"middle_blocks": 1_001}, "`middle_blocks` must be at most 1000, got 1001"),
        ({"latent_channels": 0}, "`latent_channels` must be at least 1, got 0"),
        ({"widths": (8,) * 17}, "`widths` must be at most 16 numbers, got 17"),
        ({"widths": (8, 9), "groups": 4}, "`groups` must divide `widths`"),
    ],
)
def test_settings_without_a_network_are_refused(settings, message):
    with pytest.raises((LGQError, ConfigError), match=message):
        MAGVIT2Backbone(**settings)
