"""The convolutional encoder and decoder of VQ-GAN (Esser et al. 2021), as LGQ (Altun et al. 2026) sizes them.

b = images, h w = their height and width in pixels, c = channels.

`Backbone()` is the paper's ImageNet model: f = 16, 13,995,712 + 13,995,523 parameters. Smaller ones
differ in the settings alone:

    Backbone(widths=(32, 64, 96), blocks=1, groups=8)          # f = 4, 0.87 M parameters in all
    Backbone(widths=(32, 64, 96, 128), blocks=1, groups=8)     # f = 8, 1.92 M parameters in all

Every layer keeps the memory format that it meets. So channels-last, often the faster one, is the
caller's to choose: `.to(memory_format=torch.channels_last)` once on the module, and on the images.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lgq.checks import require_at_most
from lgq.errors import LGQError

_MOST_BLOCKS, _MOST_LEVELS = 1_000, 16  # so that no file of settings can ask for a network without end


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Settings that an encoder and its decoder share."""

    widths: tuple[int, ...] = (128, 256, 256, 256, 256)
    """Channels at each resolution, the image's own first; every further entry halves the resolution."""
    blocks: int = 2
    """Residual blocks at each resolution."""
    attention_heads: int = 4
    """Heads of the self-attention at the coarsest resolution; 0 leaves the attention out."""
    groups: int = 32
    """Groups of each GroupNorm in blocks and attention; with two channels a group or more, an image
    as small as f x f still varies within its groups."""
    latent_channels: int = 64
    """Channels of a latent vector: the `dim` of the quantizer."""
    latent_groups: int = 8
    """Groups of the GroupNorm that ends the encoder."""
    checkpointing: bool = False
    """In training, recompute the branches in the backward pass: less memory, about a third more work."""

    def __post_init__(self) -> None:
        _require_positive("blocks", self.blocks)
        require_at_most(_MOST_BLOCKS, blocks=self.blocks)
        require_at_most(_MOST_LEVELS, number_of_widths=len(self.widths))
        _require_divides("groups", self.groups, "widths", self.widths)
        _require_divides("latent_groups", self.latent_groups, "latent_channels", (self.latent_channels,))
        if self.attention_heads != 0:
            name = "attention_heads (0 for none)"
            _require_divides(name, self.attention_heads, "the last of widths", self.widths[-1:])

    @property
    def factor(self) -> int:
        """Pixels along the side of the patch that becomes one latent: f in the paper."""
        return int(2 ** (len(self.widths) - 1))


class Encoder(nn.Module):
    """Images to latents, one for every `factor` x `factor` pixels, normalised in groups of channels."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        self.stem = nn.Conv2d(3, backbone.widths[0], 3, padding=1)
        self.levels = nn.Sequential(*(_down(backbone, *widths) for widths in pairwise(backbone.widths)))
        self.bottleneck = _bottleneck(backbone)
        self.to_latent = nn.Conv2d(backbone.widths[-1], backbone.latent_channels, 1)
        self.norm = nn.GroupNorm(backbone.latent_groups, backbone.latent_channels)

    def forward(
        self, images: Float[Tensor, "b 3 h w"]
    ) -> Float[Tensor, "b {self.latent_channels} h//{self.factor} w//{self.factor}"]:
        _check_images(images, self.factor)
        features = self.bottleneck(self.levels(self.stem(images)))
        latents: Tensor = self.norm(self.to_latent(features))
        return latents


class Decoder(nn.Module):
    """Latents (or codes) to images; values are free, though images live in [-1, 1]."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        self.from_latent = nn.Conv2d(backbone.latent_channels, backbone.widths[-1], 1)
        self.bottleneck = _bottleneck(backbone)
        self.levels = nn.Sequential(*(_up(backbone, *widths) for widths in pairwise(backbone.widths[::-1])))
        self.to_image = nn.Conv2d(backbone.widths[0], 3, 3, padding=1)

    def forward(
        self, latents: Float[Tensor, "b {self.latent_channels} h w"]
    ) -> Float[Tensor, "b 3 h*{self.factor} w*{self.factor}"]:
        _check_latents(latents, self.latent_channels)
        features = self.levels(self.bottleneck(self.from_latent(latents)))
        images: Tensor = self.to_image(features)
        return images


class Skip(nn.Module):
    """x + branch(x); with checkpointing, training forgets what lies within the branch and recomputes it."""

    def __init__(self, branch: nn.Module, *, checkpointing: bool):
        super().__init__()
        self.branch = branch
        self.checkpointing = checkpointing

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        if self.checkpointing and self.training and torch.is_grad_enabled():
            # No branch draws random numbers, so there is no state of theirs to restore.
            change: Tensor = checkpoint(self.branch, x, use_reentrant=False, preserve_rng_state=False)
        else:
            change = self.branch(x)
        return x + change  # x first: the sum takes the memory format of its first term


class SelfAttention(nn.Module):
    """Every position looks at every other one; a branch for `Skip`."""

    def __init__(self, width: int, *, heads: int, groups: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(groups, width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        # (b, positions, c) is how channels-last lies in memory already: this copies nothing there.
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        split = self.query_key_value(tokens).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        change: Tensor = self.out(mixed).transpose(1, 2).unflatten(2, x.shape[2:])
        return change


def _down(backbone: Backbone, width: int, coarser_width: int) -> nn.Sequential:
    halve = nn.Conv2d(width, coarser_width, 4, stride=2, padding=1)
    return nn.Sequential(*_blocks(backbone, width), halve)


def _up(backbone: Backbone, width: int, finer_width: int) -> nn.Sequential:
    double = nn.ConvTranspose2d(width, finer_width, 4, stride=2, padding=1)
    return nn.Sequential(double, *_blocks(backbone, finer_width))


def _bottleneck(backbone: Backbone) -> nn.Sequential:
    """The blocks at the coarsest resolution, and the attention where there is one."""
    width, heads = backbone.widths[-1], backbone.attention_heads
    layers = _blocks(backbone, width)
    if heads:
        attention = SelfAttention(width, heads=heads, groups=backbone.groups)
        layers.append(Skip(attention, checkpointing=backbone.checkpointing))
    return nn.Sequential(*layers)


def _blocks(backbone: Backbone, width: int) -> list[nn.Module]:
    branches = (_residual_branch(width, backbone.groups) for _ in range(backbone.blocks))
    return [Skip(branch, checkpointing=backbone.checkpointing) for branch in branches]


def _residual_branch(width: int, groups: int) -> nn.Sequential:
    return nn.Sequential(*_norm_silu_conv(width, groups), *_norm_silu_conv(width, groups))


def _norm_silu_conv(width: int, groups: int) -> tuple[nn.Module, ...]:
    return nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)


def _check_images(images: Tensor, factor: int) -> None:
    if not images.is_floating_point():
        raise LGQError(
            f"images must be float in [-1, 1], got {images.dtype}; bytes become so by x / 127.5 - 1."
        )
    if images.ndim != 4 or images.shape[1] != 3:
        raise LGQError(f"images must be RGB of shape (b, 3, h, w), got shape {tuple(images.shape)}.")
    height, width = images.shape[2:]
    if height % factor or width % factor or not height or not width:
        raise LGQError(
            f"height and width must be multiples of {factor}, got {height} x {width}; crop, pad or resize."
        )


def _check_latents(latents: Tensor, channels: int) -> None:
    if latents.ndim != 4 or latents.shape[1] != channels:
        raise LGQError(
            f"latents must have shape (b, {channels}, h, w), got {tuple(latents.shape)}; "
            "the channels are `latent_channels` of the Backbone, and come second."
        )


def _require_positive(name: str, *values: int) -> None:
    if not values or min(values) < 1:
        raise LGQError(f"{name} must be at least 1, got {', '.join(map(str, values)) or 'none'}.")


def _require_divides(name: str, divisor: int, owner: str, numbers: tuple[int, ...]) -> None:
    _require_positive(name, divisor)
    _require_positive(owner, *numbers)
    if odd := [number for number in numbers if number % divisor]:
        raise LGQError(f"{name} must divide {owner}, got {divisor} and {numbers}: {odd[0]} is no multiple.")
