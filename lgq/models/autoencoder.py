"""The convolutional encoder and decoder of VQ-GAN (Esser et al. 2021), as LGQ (Altun et al. 2026) sizes them.

b = images, h w = height and width in pixels, c = channels, o = channels of an output.

`Backbone()` is the paper's ImageNet model: f = 16, 13,995,712 + 13,995,523 parameters. Smaller models differ
only in the settings:

    Backbone(widths=(32, 64, 96), blocks=1, groups=8)          # f = 4, 0.87 M parameters in all
    Backbone(widths=(32, 64, 96, 128), blocks=1, groups=8)     # f = 8, 1.92 M parameters in all

With `norm="layer"` and no attention, networks are local: a pixel or a token depends only on what lies within
`reach` tokens of it, so that large images can be computed in parts.

Every layer keeps the memory format of its input. For channels-last, which is often faster, call
`.to(memory_format=torch.channels_last)` once on the module and on the images.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lgq.checks import require_at_least, require_at_most, require_images, require_one_of
from lgq.errors import LGQError
from lgq.ops.numerics import attend

Norm = Literal["group", "layer"]

# So that no settings file can ask for an endless network.
MAX_BLOCKS, MAX_LEVELS, _MAX_PATCH = 1_000, 16, 64


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Settings that an encoder and its decoder share."""

    widths: tuple[int, ...] = (128, 256, 256, 256, 256)
    """Channels at each resolution, from the image's own on; each further entry halves the resolution."""
    patch: int = 1
    """Side of the square of pixels that the first layer joins and the last one parts; above 1, no layer runs
    at the full resolution of the image, where features cost the most."""
    refinement: int = 0
    """Channels of a residual block that the decoder adds before its last layer, at twice the resolution of
    its other ones, so that the borders of patches do not show; needs an even `patch`, 0 for none."""
    blocks: int = 2
    """Number of residual blocks at each resolution."""
    attention_heads: int = 4
    """Number of heads of the self-attention at the lowest resolution; 0 for no attention."""
    groups: int = 32
    """Number of groups of each GroupNorm in blocks and attention; `norm` layer has none. With two or more
    channels per group, even an image of f x f pixels varies within its groups."""
    latent_channels: int = 64
    """Number of channels of a latent vector: the `dim` of the quantizer."""
    latent_groups: int = 8
    """Number of groups of the GroupNorm at the end of the encoder; `norm` layer has none."""
    norm: Norm = "group"
    """Normalization: `group`, a GroupNorm over the whole image, or `layer`, over the channels of each
    position, with which every part of an image can be computed by itself."""
    checkpointing: bool = False
    """Whether training recomputes branches in the backward pass: less memory, about a third more work."""

    def __post_init__(self) -> None:
        require_at_least(1, blocks=self.blocks)
        require_at_most(MAX_BLOCKS, blocks=self.blocks)
        require_at_least(1, patch=self.patch)
        require_at_most(_MAX_PATCH, patch=self.patch)
        require_at_least(0, refinement=self.refinement)
        if self.refinement and self.patch % 2:
            raise LGQError(
                f"`refinement` needs a `patch` that 2 divides, got {self.patch}: change it, or set "
                "`refinement` to 0."
            )
        require_one_of(get_args(Norm), norm=self.norm)
        if len(self.widths) > MAX_LEVELS:
            raise LGQError(f"`widths` must be at most {MAX_LEVELS} numbers, got {len(self.widths)}.")
        require_divides("`groups`", self.groups, "`widths`", self.widths)
        if self.refinement:
            require_divides("`groups`", self.groups, "`refinement`", (self.refinement,))
        require_divides("`latent_groups`", self.latent_groups, "`latent_channels`", (self.latent_channels,))
        if self.attention_heads != 0:
            name = "`attention_heads` (0 for none)"
            require_divides(name, self.attention_heads, "the last of `widths`", self.widths[-1:])

    @property
    def factor(self) -> int:
        """Side, in pixels, of the patch that becomes one latent: f in the paper."""
        return int(self.patch * 2 ** (len(self.widths) - 1))

    @property
    def reach(self) -> int | None:
        """Tokens on each side of its own on which a pixel depends in the decoder, and in whose patches the
        pixels lie on which a token depends in the encoder; None if it is the whole image."""
        if self.norm == "group" or self.attention_heads:
            return None
        sides = [self.patch * 2**level for level in range(len(self.widths))]  # of a position, in pixels
        blocks = 2 * self.blocks * sum(sides)
        # Three convolutions at twice the resolution.
        refinement = 3 * self.patch // 2 if self.refinement else 0
        return math.ceil((self.patch + blocks + sum(sides[:-1]) + refinement) / self.factor)

    @property
    def attention_per_token(self) -> int:
        """Positions of the largest attention layer for each token of the image; 0 without attention."""
        return 1 if self.attention_heads else 0

    @property
    def values_per_pixel(self) -> float:
        """Values per pixel where they are most: the colours of the image, or features of a resolution."""
        sides = (self.patch * 2**level for level in range(len(self.widths)))
        refined = self.refinement / (self.patch / 2) ** 2
        return max(3, refined, *(width / side**2 for width, side in zip(self.widths, sides, strict=True)))

    def networks(self) -> tuple["Encoder", "Decoder"]:
        """Build an encoder and its decoder."""
        return Encoder(self), Decoder(self)


class Encoder(nn.Module):
    """Maps images to latents, one per `factor` x `factor` pixels, normalised in groups of channels."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        self.patch = backbone.patch
        self.stem = nn.Conv2d(3 * self.patch**2, backbone.widths[0], 3, padding=1)
        self.levels = nn.Sequential(*(_down(backbone, *widths) for widths in pairwise(backbone.widths)))
        self.bottleneck = _bottleneck(backbone)
        self.to_latent = nn.Conv2d(backbone.widths[-1], backbone.latent_channels, 1)
        self.norm = _norm(backbone, backbone.latent_groups, backbone.latent_channels)

    def forward(
        self, images: Float[Tensor, "b 3 h w"]
    ) -> Float[Tensor, "b {self.latent_channels} h//{self.factor} w//{self.factor}"]:
        self.require_fitting(images)
        patches = images if self.patch == 1 else F.pixel_unshuffle(images, self.patch)
        features = self.bottleneck(self.levels(self.stem(patches)))
        latents: Tensor = self.norm(self.to_latent(features))
        return latents

    def require_fitting(self, images: Tensor) -> None:
        """Refuse what is no batch of images, and sizes that `factor` does not divide."""
        require_divisible_images(images, self.factor)


class Decoder(nn.Module):
    """Maps latents or codes to images, for targets in [-1, 1]; the output is not bounded."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        self.from_latent = nn.Conv2d(backbone.latent_channels, backbone.widths[-1], 1)
        self.bottleneck = _bottleneck(backbone)
        self.levels = nn.Sequential(*(_up(backbone, *widths) for widths in pairwise(backbone.widths[::-1])))
        self.refine: Refinement | None = None
        self.patch, width = backbone.patch, backbone.widths[0]
        if backbone.refinement:
            self.refine = Refinement(backbone, width)
            self.patch, width = backbone.patch // 2, backbone.refinement
        self.to_image = nn.Conv2d(width, 3 * self.patch**2, 3, padding=1)

    def forward(
        self, latents: Float[Tensor, "b {self.latent_channels} h w"]
    ) -> Float[Tensor, "b 3 h*{self.factor} w*{self.factor}"]:
        require_latents(latents, self.latent_channels)
        features = self.levels(self.bottleneck(self.from_latent(latents)))
        if self.refine is not None:
            features = self.refine(features)
        patches: Tensor = self.to_image(features)
        return patches if self.patch == 1 else F.pixel_shuffle(patches, self.patch)

    @torch.no_grad()
    def take(self, state: dict[str, Tensor]) -> None:
        """Load weights; those of a decoder without a refinement give this one the same images to begin with.

        Its last layer becomes the first of the refinement, whose block starts as the identity (Net2Net,
        Chen et al. 2016).
        """
        if self.refine is None or "refine.to_fine.weight" in state:
            self.load_state_dict(state)
            return
        fine, pixels = self.refine.to_fine, self.to_image.out_channels
        for mine, theirs in ((fine.weight, state["to_image.weight"]), (fine.bias, state["to_image.bias"])):
            assert mine is not None
            # (colour, row of fine positions, row of pixels, column, column) to colours and pixels first.
            grid = theirs.unflatten(0, (3, 2, self.patch, 2, self.patch)).movedim((1, 3), (3, 4))
            mine[: 4 * pixels] = grid.flatten(0, 4)
        last = self.refine.block.branch[-1]  # type: ignore[index]  # a Sequential
        for layer in (last, self.to_image):
            for parameter in layer.parameters():
                parameter.zero_()
        self.to_image.weight[:, :pixels, 1, 1] = torch.eye(pixels)
        own = {name: value for name, value in state.items() if not name.startswith("to_image.")}
        self.load_state_dict(self.state_dict() | own)


class Refinement(nn.Module):
    """Doubles the resolution of a decoder's last features, with a residual block there."""

    def __init__(self, backbone: Backbone, width: int):
        super().__init__()
        self.to_fine = nn.Conv2d(width, 4 * backbone.refinement, 3, padding=1)
        self.block = _block(backbone, backbone.refinement)

    def forward(self, features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h*2 w*2"]:
        fine: Tensor = self.block(F.pixel_shuffle(self.to_fine(features), 2))
        return fine


def require_divisible_images(images: Tensor, factor: int) -> None:
    require_images(images)
    height, width = images.shape[2:]
    if height % factor or width % factor:
        raise LGQError(
            f"height and width must be multiples of {factor}, got {height} x {width}: "
            "crop, pad or resize the images."
        )


def require_latents(latents: Tensor, channels: int) -> None:
    if latents.ndim != 4 or latents.shape[1] != channels:
        raise LGQError(
            f"latents must have shape (b, {channels}, h, w), got {tuple(latents.shape)}: "
            "the channels are `latent_channels` of the Backbone, on axis 1."
        )


class Skip(nn.Module):
    """Computes x + branch(x); with checkpointing, training recomputes the branch in the backward pass.

    shortcut: layer in place of the first x, where the branch changes the number of channels.
    """

    def __init__(self, branch: nn.Module, *, checkpointing: bool, shortcut: nn.Module | None = None):
        super().__init__()
        self.branch = branch
        self.checkpointing = checkpointing
        self.shortcut = shortcut

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h w"]:
        if self.checkpointing and self.training and torch.is_grad_enabled():
            # No branch draws random numbers, so there is no random state to restore.
            change: Tensor = checkpoint(self.branch, x, use_reentrant=False, preserve_rng_state=False)
        else:
            change = self.branch(x)
        kept = x if self.shortcut is None else self.shortcut(x)
        return kept + change  # x first: the sum takes the memory format of its first term


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each position (as in ConvNeXt, Liu et al. 2022)."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        # Channels-last is the layout that LayerNorm works in, so nothing is copied there.
        normalized = super().forward(x.movedim(1, 3)).movedim(3, 1)
        return normalized.contiguous() if x.is_contiguous() else normalized


class SelfAttention(nn.Module):
    """Self-attention of every position to every position; a branch for `Skip`."""

    def __init__(self, width: int, *, heads: int, norm: nn.Module):
        super().__init__()
        self.heads = heads
        self.norm = norm
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        # (b, positions, c) is the memory layout of channels-last already, so nothing is copied there.
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        split = self.query_key_value(tokens).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        mixed = attend(query, key, value).transpose(1, 2).flatten(2)
        change: Tensor = self.out(mixed).transpose(1, 2).unflatten(2, x.shape[2:])
        return change


def _down(backbone: Backbone, width: int, coarser_width: int) -> nn.Sequential:
    halve = nn.Conv2d(width, coarser_width, 4, stride=2, padding=1)
    return nn.Sequential(*_blocks(backbone, width), halve)


def _up(backbone: Backbone, width: int, finer_width: int) -> nn.Sequential:
    double = nn.ConvTranspose2d(width, finer_width, 4, stride=2, padding=1)
    return nn.Sequential(double, *_blocks(backbone, finer_width))


def _bottleneck(backbone: Backbone) -> nn.Sequential:
    """Build the blocks at the lowest resolution, and the attention if there is one."""
    width, heads = backbone.widths[-1], backbone.attention_heads
    layers = _blocks(backbone, width)
    if heads:
        attention = SelfAttention(width, heads=heads, norm=_norm(backbone, backbone.groups, width))
        layers.append(Skip(attention, checkpointing=backbone.checkpointing))
    return nn.Sequential(*layers)


def _blocks(backbone: Backbone, width: int) -> list[nn.Module]:
    return [_block(backbone, width) for _ in range(backbone.blocks)]


def _block(backbone: Backbone, width: int) -> Skip:
    def norm_silu_conv() -> tuple[nn.Module, ...]:
        norm = _norm(backbone, backbone.groups, width)
        return norm, nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)

    branch = nn.Sequential(*norm_silu_conv(), *norm_silu_conv())
    return Skip(branch, checkpointing=backbone.checkpointing)


def _norm(backbone: Backbone, groups: int, width: int) -> nn.Module:
    return nn.GroupNorm(groups, width) if backbone.norm == "group" else ChannelNorm(width)


def require_divides(name: str, divisor: int, owner: str, numbers: tuple[int, ...]) -> None:
    for label, values in ((name, (divisor,)), (owner, numbers)):
        if not values or min(values) < 1:
            raise LGQError(f"{label} must be at least 1, got {', '.join(map(str, values)) or 'none'}.")
    if rest := [number for number in numbers if number % divisor]:
        raise LGQError(f"{name} must divide {owner}, got {divisor} and {numbers}: {rest[0]} is no multiple.")
