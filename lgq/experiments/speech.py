"""A tokenizer of speech: a small convolutional autoencoder of waveforms around any quantizer.

b = clips, t = samples, c = channels.

Encoder and decoder learn without a quantizer first, the same for all quantizers of a seed, and then with it.
A token stands for 64 samples, 8 ms at 8 kHz. The loss is l1 of the waveforms, their spectral distance, and
the quantizer's own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor, nn

from lgq.experiments.quantizer_alone import descend
from lgq.metrics.code_usage import CodeUsage, batch_utilization
from lgq.quantizers import Quantizer, build_quantizer
from lgq.quantizers.continuous import Continuous

CLIP_SAMPLES = 4_096
_STRIDE = 4
_WIDTHS = (1, 32, 64, 64)
"""Channels of the waveform, and after each convolution with a stride."""
_CHANNELS = 64
_GROUPS = 8
_WINDOWS = (64, 256, 1_024)
"""Samples of the spectra that are compared."""
_AUDIBLE = 1e-2
"""Magnitude below which a difference of spectra does not count."""
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class SpeechSettings:
    """A quantizer, and how the autoencoder around it learns."""

    quantizer: str = "lgq"
    codebook_size: int = 1_024
    quantizer_options: dict[str, Any] = field(default_factory=dict)
    start_steps: int = 500
    """Steps without a quantizer."""
    steps: int = 1_000
    """Steps with it."""
    batch_size: int = 16
    learning_rate: float = 1e-3
    clip: float = 1.0
    """Largest norm of the gradient."""


class SpeechTokenizer(nn.Module):
    """Encoder, quantizer and decoder of waveforms."""

    def __init__(self, quantizer: Quantizer):
        super().__init__()
        *_, widest = _WIDTHS
        down: list[nn.Module] = []
        up: list[nn.Module] = [nn.Conv1d(_CHANNELS, widest, 1)]
        strided: dict[str, Any] = {"kernel_size": 2 * _STRIDE, "stride": _STRIDE, "padding": _STRIDE // 2}
        for width, wider in pairwise(_WIDTHS):
            down += [nn.Conv1d(width, wider, **strided), _Block(wider)]
        for wider, width in pairwise(reversed(_WIDTHS)):
            up += [_Block(wider), nn.ConvTranspose1d(wider, width, **strided)]
        self.encoder = nn.Sequential(*down, nn.Conv1d(widest, _CHANNELS, 1), nn.GroupNorm(_GROUPS, _CHANNELS))
        self.quantizer: Quantizer = quantizer
        self.decoder = nn.Sequential(*up)

    def forward(self, clips: Float[Tensor, "b t"]) -> tuple[Float[Tensor, "b t"], Any]:
        """Return the reconstruction, and what the quantizer returned."""
        out = self.quantizer(self.encoder(clips[:, None]))
        return self.decoder(out.quantized)[:, 0], out


def speech_tokenizer(settings: SpeechSettings, seed: int = 0) -> SpeechTokenizer:
    """Return a tokenizer with random weights."""
    options = {"seed": seed, "channel_dim": 1} | settings.quantizer_options
    return SpeechTokenizer(build_quantizer(settings.quantizer, _CHANNELS, settings.codebook_size, **options))


class _Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, width) for _ in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for norm, layer in zip(self.norms, self.layers, strict=True):
            hidden = layer(F.silu(norm(hidden)))
        return x + hidden


def spectral_distance(a: Float[Tensor, "b t"], b: Float[Tensor, "b t"]) -> Float[Tensor, " b"]:
    """Mean absolute difference of log magnitudes, over spectra of short, middle and long windows, in nats."""
    distances = []
    for window in _WINDOWS:
        taper = torch.hann_window(window, device=a.device)
        x, y = (
            torch.stft(clips, window, window // 4, window=taper, normalized=True, return_complex=True)
            for clips in (a, b)
        )
        distances.append(((x.abs() + _AUDIBLE).log() - (y.abs() + _AUDIBLE).log()).abs().mean((1, 2)))
    return torch.stack(distances).mean(0)


def train_speech(
    settings: SpeechSettings,
    clips: Float32[Tensor, "n t"],
    *,
    seed: int,
    check_stop: Callable[[], None] = lambda: None,
) -> tuple[SpeechTokenizer, list[dict[str, float]]]:
    """Train a tokenizer on recordings; return it with its curve: `step`, `loss`, `batch_utilization`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = SpeechTokenizer(Continuous(_CHANNELS, channel_dim=1)).to(clips.device)
    random = torch.Generator().manual_seed(seed)

    def draw() -> Float32[Tensor, "b t"]:
        chosen = torch.randint(len(clips), (settings.batch_size,), generator=random)
        return clips[chosen.to(clips.device)]

    def loss_at(progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        clips = draw()
        tokenizer.quantizer.anneal(progress)
        reconstruction, out = tokenizer(clips)
        loss = F.l1_loss(reconstruction, clips) + spectral_distance(reconstruction, clips).mean() + out.loss
        used = batch_utilization(out.indices, settings.codebook_size)
        return loss, {"loss": loss, "batch_utilization": used}

    learning: dict[str, Any] = {
        "learning_rate": settings.learning_rate,
        "clip": settings.clip,
        "check_stop": check_stop,
    }
    descend(tokenizer, loss_at, steps=settings.start_steps, **learning)
    tokenizer.quantizer = speech_tokenizer(settings, seed).quantizer.to(clips.device)
    return tokenizer, descend(tokenizer, loss_at, steps=settings.steps, **learning)


@torch.no_grad()
def measure_speech(tokenizer: SpeechTokenizer, clips: Float32[Tensor, "n t"]) -> dict[str, float]:
    """Return `snr` in decibels and `spectral_distance`, means over recordings, and the use of codes."""
    usage = CodeUsage.empty(tokenizer.quantizer.codebook_size)
    ratios, distances = [], []
    tokenizer.eval()
    for batch in clips.split(_BATCH):
        reconstruction, out = tokenizer(batch)
        usage.update(out.indices)
        noise = (batch - reconstruction).square().sum(1)
        ratios.append(10 * (batch.square().sum(1) / noise).log10())
        distances.append(spectral_distance(reconstruction, batch))
    return {
        "snr": float(torch.cat(ratios).mean()),
        "spectral_distance": float(torch.cat(distances).mean()),
        **usage.summary(),
    }
