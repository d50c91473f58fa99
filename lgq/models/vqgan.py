"""The network of VQ-GAN (Esser et al. 2021) as published, which LlamaGen, IBQ and diffusers' `VQModel` share.

b = images, h w = height and width in pixels, c = channels.

It differs from `lgq.models.autoencoder`: strided convolutions with padding on two sides, nearest
upsampling, residual blocks that change the width, attention at chosen resolutions, and a 3 x 3 convolution to
features before the 1 x 1 convolution to latents. `lgq.interop.checkpoints` fills it with published weights.

    VQGANBackbone()                                                        # taming-transformers, f = 16
    VQGANBackbone(latent_channels=8)                                       # LlamaGen VQ-16
    VQGANBackbone(widths=(128, 256, 256, 512), latent_channels=8, attention_levels=(3,))       # its VQ-8
"""

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import require_at_least, require_at_most
from lgq.errors import LGQError
from lgq.models.autoencoder import (
    MAX_BLOCKS,
    MAX_LEVELS,
    SelfAttention,
    Skip,
    require_divides,
    require_divisible_images,
    require_latents,
)

_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class VQGANBackbone:
    """Settings that an encoder and its decoder share; the defaults are the published model of f = 16."""

    widths: tuple[int, ...] = (128, 128, 256, 256, 512)
    """Channels at each resolution, from the image's own on; each further entry halves the resolution."""
    blocks: int = 2
    """Number of residual blocks at each resolution of the encoder; the decoder has one more."""
    attention_levels: tuple[int, ...] = (4,)
    """Resolutions whose blocks are each followed by self-attention, as places in `widths`."""
    middle_attention: bool = True
    """Whether there is self-attention between the two blocks at the latents."""
    groups: int = 32
    """Number of groups of each GroupNorm."""
    features: int = 256
    """Number of channels between the 3 x 3 and the 1 x 1 convolution at the latents."""
    latent_channels: int = 256
    """Number of channels of a latent vector: the `dim` of the quantizer."""
    checkpointing: bool = False
    """Whether training recomputes branches in the backward pass: less memory, about a third more work."""

    def __post_init__(self) -> None:
        require_at_least(1, blocks=self.blocks, features=self.features, latent_channels=self.latent_channels)
        require_at_most(MAX_BLOCKS, blocks=self.blocks)
        if len(self.widths) > MAX_LEVELS:
            raise LGQError(f"`widths` must be at most {MAX_LEVELS} numbers, got {len(self.widths)}.")
        require_divides("`groups`", self.groups, "`widths`", self.widths)
        if wrong := [level for level in self.attention_levels if level not in range(len(self.widths))]:
            rule = f"be places in `widths`, 0 to {len(self.widths) - 1}"
            raise LGQError(f"`attention_levels` must {rule}, got {wrong[0]}.")

    @property
    def factor(self) -> int:
        """Side, in pixels, of the patch that becomes one latent."""
        return int(2 ** (len(self.widths) - 1))

    @property
    def reach(self) -> int | None:
        """None, as in `Backbone`: each normalisation sees the whole image, so none is computed in tiles."""
        return None

    @property
    def attention_per_token(self) -> int:
        """Positions of the largest attention layer for each token of the image; 0 without attention."""
        last = len(self.widths) - 1
        levels = (*self.attention_levels, *([last] if self.middle_attention else []))
        return int(max((4 ** (last - level) for level in levels), default=0))

    @property
    def values_per_pixel(self) -> float:
        """Values per pixel where they are most: the colours of the image, or features of a resolution."""
        return max(3, *(width / 4**level for level, width in enumerate(self.widths)))

    def networks(self) -> tuple["VQGANEncoder", "VQGANDecoder"]:
        """Build an encoder and its decoder."""
        return VQGANEncoder(self), VQGANDecoder(self)


class VQGANEncoder(nn.Module):
    """Maps images to latents, one per `factor` x `factor` pixels."""

    def __init__(self, backbone: VQGANBackbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        widths = backbone.widths
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.levels = nn.Sequential(
            *(
                Level(
                    backbone,
                    level,
                    *pair,
                    backbone.blocks,
                    Halve(pair[1]) if level < len(widths) - 1 else None,
                )
                for level, pair in enumerate(pairwise((widths[0], *widths)))
            )
        )
        self.middle = Middle(backbone)
        self.norm = nn.GroupNorm(backbone.groups, widths[-1], eps=_EPS)
        self.to_features = nn.Conv2d(widths[-1], backbone.features, 3, padding=1)
        self.to_latent = nn.Conv2d(backbone.features, backbone.latent_channels, 1)

    def forward(
        self, images: Float[Tensor, "b 3 h w"]
    ) -> Float[Tensor, "b {self.latent_channels} h//{self.factor} w//{self.factor}"]:
        self.require_fitting(images)
        features = self.norm(self.middle(self.levels(self.stem(images))))
        latents: Tensor = self.to_latent(self.to_features(F.silu(features)))
        return latents

    def require_fitting(self, images: Tensor) -> None:
        """Refuse what is no batch of images, and sizes that `factor` does not divide."""
        require_divisible_images(images, self.factor)


class VQGANDecoder(nn.Module):
    """Maps latents or codes to images, for targets in [-1, 1]; the output is not bounded."""

    def __init__(self, backbone: VQGANBackbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        widths = backbone.widths
        self.from_latent = nn.Conv2d(backbone.latent_channels, backbone.features, 1)
        self.from_features = nn.Conv2d(backbone.features, widths[-1], 3, padding=1)
        self.middle = Middle(backbone)
        levels = range(len(widths) - 1, -1, -1)
        self.levels = nn.Sequential(
            *(
                Level(backbone, level, *pair, backbone.blocks + 1, Double(pair[1]) if level else None)
                for level, pair in zip(levels, pairwise((widths[-1], *widths[::-1])), strict=True)
            )
        )
        self.norm = nn.GroupNorm(backbone.groups, widths[0], eps=_EPS)
        self.to_image = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(
        self, latents: Float[Tensor, "b {self.latent_channels} h w"]
    ) -> Float[Tensor, "b 3 h*{self.factor} w*{self.factor}"]:
        require_latents(latents, self.latent_channels)
        features = self.middle(self.from_features(self.from_latent(latents)))
        images: Tensor = self.to_image(F.silu(self.norm(self.levels(features))))
        return images


class Level(nn.Module):
    """Blocks at one resolution, each followed by self-attention if there is any, then the way to the next."""

    def __init__(
        self,
        backbone: VQGANBackbone,
        level: int,
        width: int,
        out_width: int,
        blocks: int,
        resample: nn.Module | None,
    ):
        super().__init__()
        widths = pairwise((width, *[out_width] * blocks))
        self.blocks = nn.ModuleList(_block(backbone, *pair) for pair in widths)
        attentions = blocks if level in backbone.attention_levels else 0
        self.attentions = nn.ModuleList(_attention(backbone, out_width) for _ in range(attentions))
        self.resample = resample

    def forward(self, x: Float[Tensor, "b c h w"]) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x)
            if len(self.attentions):
                x = self.attentions[number](x)
        return x if self.resample is None else self.resample(x)


class Middle(nn.Module):
    """Two blocks at the resolution of the latents, with self-attention between them if there is any."""

    def __init__(self, backbone: VQGANBackbone):
        super().__init__()
        width = backbone.widths[-1]
        self.blocks = nn.ModuleList(_block(backbone, width, width) for _ in range(2))
        self.attention = _attention(backbone, width) if backbone.middle_attention else None

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        x = self.blocks[0](x)
        x = x if self.attention is None else self.attention(x)
        return self.blocks[1](x)


class Halve(nn.Module):
    """Halves the resolution by a strided convolution; zeros are added at the right and at the bottom only."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h//2 w//2"]:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Double(nn.Module):
    """Doubles the resolution: each value four times, then a convolution."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h*2 w*2"]:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def _block(backbone: VQGANBackbone, width: int, out_width: int) -> Skip:
    branch = nn.Sequential(
        nn.GroupNorm(backbone.groups, width, eps=_EPS),
        nn.SiLU(),
        nn.Conv2d(width, out_width, 3, padding=1),
        nn.GroupNorm(backbone.groups, out_width, eps=_EPS),
        nn.SiLU(),
        nn.Conv2d(out_width, out_width, 3, padding=1),
    )
    shortcut = None if width == out_width else nn.Conv2d(width, out_width, 1)
    return Skip(branch, checkpointing=backbone.checkpointing, shortcut=shortcut)


def _attention(backbone: VQGANBackbone, width: int) -> Skip:
    attention = SelfAttention(width, heads=1, norm=nn.GroupNorm(backbone.groups, width, eps=_EPS))
    return Skip(attention, checkpointing=backbone.checkpointing)
