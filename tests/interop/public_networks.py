"""Published networks as plain functions over a state_dict: their names and their arithmetic.

A checkpoint is a dictionary of random tensors with the public names and shapes of a small network. `Network`
reads it layer by layer, by these names, and shares no code with the package.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
MULTIPLIERS, WIDTH, BLOCKS, FEATURES, LATENT, CODES = (1, 1, 2), 32, 2, 12, 6, 40
ATTENDS = len(MULTIPLIERS) - 1
"""Level with attention: the coarsest one."""


class Recipe:
    """Draws random weights by the names of a family."""

    def __init__(self, family: str):
        self.family = family
        self.state: State = {}
        self.generator = torch.Generator().manual_seed(3)

    def tensor(self, name: str, *shape: int, scale: float, shift: float = 0.0) -> None:
        self.state[name] = shift + scale * torch.randn(shape, generator=self.generator)

    def conv(self, name: str, inputs: int, outputs: int, side: int = 3) -> None:
        self.tensor(f"{name}.weight", outputs, inputs, side, side, scale=(inputs * side**2) ** -0.5)
        self.tensor(f"{name}.bias", outputs, scale=0.1)

    def norm(self, name: str, width: int) -> None:
        self.tensor(f"{name}.weight", width, scale=0.1, shift=1.0)
        self.tensor(f"{name}.bias", width, scale=0.1)

    def block(self, name: str, inputs: int, outputs: int) -> None:
        self.norm(f"{name}.norm1", inputs)
        self.conv(f"{name}.conv1", inputs, outputs)
        self.norm(f"{name}.norm2", outputs)
        self.conv(f"{name}.conv2", outputs, outputs)
        if inputs != outputs:
            self.conv(f"{name}.nin_shortcut", inputs, outputs, 1)

    def attention(self, name: str, width: int) -> None:
        self.norm(f"{name}.norm", width)
        for layer in ("q", "k", "v", "proj_out"):
            self.conv(f"{name}.{layer}", width, width, 1)

    def middle(self, network: str, width: int) -> None:
        first, attention, second = middle_names(self.family)
        self.block(f"{network}.{first}", width, width)
        self.attention(f"{network}.{attention}", width)
        self.block(f"{network}.{second}", width, width)


def middle_names(family: str) -> tuple[str, str, str]:
    return (
        ("mid.0", "mid.1", "mid.2") if family == "llamagen" else ("mid.block_1", "mid.attn_1", "mid.block_2")
    )


def level_names(family: str, level: int) -> tuple[str, str, str]:
    """Name the encoder's level, the decoder's level of this resolution, and the blocks within."""
    if family == "llamagen":
        return f"encoder.conv_blocks.{level}", f"decoder.conv_blocks.{ATTENDS - level}", "res"
    return f"encoder.down.{level}", f"decoder.up.{level}", "block"


def checkpoint(family: str) -> State:
    """A state_dict of taming-transformers, LlamaGen or IBQ, with what else their files hold."""
    recipe, widths = Recipe(family), [WIDTH * factor for factor in MULTIPLIERS]
    recipe.conv("encoder.conv_in", 3, WIDTH)
    before = WIDTH
    for level, width in enumerate(widths):
        down, _, block = level_names(family, level)
        for number in range(BLOCKS):
            recipe.block(f"{down}.{block}.{number}", before, width)
            before = width
            if level == ATTENDS:
                recipe.attention(f"{down}.attn.{number}", width)
        if level < ATTENDS:
            recipe.conv(f"{down}.downsample.conv", width, width)
    recipe.middle("encoder", before)
    recipe.norm("encoder.norm_out", before)
    recipe.conv("encoder.conv_out", before, FEATURES)
    recipe.conv("decoder.conv_in", FEATURES, before)
    recipe.middle("decoder", before)
    for level, width in reversed(list(enumerate(widths))):
        _, up, block = level_names(family, level)
        for number in range(BLOCKS + 1):
            recipe.block(f"{up}.{block}.{number}", before, width)
            before = width
            if level == ATTENDS:
                recipe.attention(f"{up}.attn.{number}", width)
        if level:
            recipe.conv(f"{up}.upsample.conv", width, width)
    recipe.norm("decoder.norm_out", before)
    recipe.conv("decoder.conv_out", before, 3)
    recipe.conv("quant_conv", FEATURES, LATENT, 1)
    recipe.conv("post_quant_conv", LATENT, FEATURES, 1)
    recipe.tensor("quantize.embedding.weight", CODES, LATENT, scale=1.0)
    recipe.tensor("loss.discriminator.main.0.weight", 4, 3, 4, 4, scale=1.0)
    if family == "llamagen":
        recipe.tensor("quantize.codebook_used", 65_536, scale=0.0)
    return recipe.state


@dataclass
class Network:
    """Computes what the published code computes."""

    state: State
    family: str

    def conv(self, name: str, x: Tensor, **options: int) -> Tensor:
        return F.conv2d(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"], **options)

    def norm(self, name: str, x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), 32, -1)
        centred = grouped - grouped.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        weight, bias = (self.state[f"{name}.{kind}"][:, None, None] for kind in ("weight", "bias"))
        return scaled.reshape(x.shape) * weight + bias

    def block(self, name: str, x: Tensor) -> Tensor:
        y = x
        for number in (1, 2):
            y = self.norm(f"{name}.norm{number}", y)
            y = self.conv(f"{name}.conv{number}", y * torch.sigmoid(y), padding=1)
        return y + (
            self.conv(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in self.state else x
        )

    def attention(self, name: str, x: Tensor) -> Tensor:
        if f"{name}.norm.weight" not in self.state:
            return x
        normed = self.norm(f"{name}.norm", x)
        query, key, value = (self.conv(f"{name}.{layer}", normed).flatten(2) for layer in "qkv")
        weights = (query.transpose(1, 2) @ key * x.shape[1] ** -0.5).softmax(-1)
        return x + self.conv(f"{name}.proj_out", (value @ weights.transpose(1, 2)).reshape(x.shape))

    def middle(self, network: str, x: Tensor) -> Tensor:
        first, attention, second = (f"{network}.{name}" for name in middle_names(self.family))
        return self.block(second, self.attention(attention, self.block(first, x)))

    def latents(self, images: Tensor) -> Tensor:
        x = self.conv("encoder.conv_in", images, padding=1)
        for level in range(len(MULTIPLIERS)):
            down, _, block = level_names(self.family, level)
            for number in range(BLOCKS):
                x = self.attention(f"{down}.attn.{number}", self.block(f"{down}.{block}.{number}", x))
            if level < ATTENDS:
                x = self.conv(f"{down}.downsample.conv", F.pad(x, (0, 1, 0, 1)), stride=2)
        x = self.norm("encoder.norm_out", self.middle("encoder", x))
        return self.conv("quant_conv", self.conv("encoder.conv_out", x * torch.sigmoid(x), padding=1))

    def codes(self) -> Tensor:
        codes = self.state["quantize.embedding.weight"]
        return codes / codes.norm(dim=1, keepdim=True) if self.family == "llamagen" else codes

    def tokens(self, images: Tensor) -> Tensor:
        vectors, codes = self.latents(images).movedim(1, -1), self.codes()
        if self.family == "ibq":
            return (vectors @ codes.T).softmax(-1).argmax(-1)
        if self.family == "llamagen":
            vectors = vectors / vectors.norm(dim=-1, keepdim=True)
        return (vectors[..., None, :] - codes).square().sum(-1).argmin(-1)

    def images(self, tokens: Tensor) -> Tensor:
        x = self.conv("post_quant_conv", self.codes()[tokens].movedim(-1, 1))
        x = self.middle("decoder", self.conv("decoder.conv_in", x, padding=1))
        for level in reversed(range(len(MULTIPLIERS))):
            _, up, block = level_names(self.family, level)
            for number in range(BLOCKS + 1):
                x = self.attention(f"{up}.attn.{number}", self.block(f"{up}.{block}.{number}", x))
            if level:
                doubled = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
                x = self.conv(f"{up}.upsample.conv", doubled, padding=1)
        x = self.norm("decoder.norm_out", x)
        return self.conv("decoder.conv_out", x * torch.sigmoid(x), padding=1)
