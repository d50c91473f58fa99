"""What reconstructions are judged by, batch by batch: pixels, LPIPS, Inception features, use of codes.

b = images, s = their side in pixels.

    quality = TokenizerQuality.of(judges, codebook_size=1024, images=len(dataset))
    quality.update(images, reconstructions, codes, numbers)             # per batch
    quality.over_ranks().metrics()
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from lgq.distributed import sum_over_ranks
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.features import SAMPLE, FeatureSet
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.reconstruction import ReconstructionQuality
from lgq.models.inception import FEATURES
from lgq.tokenizer import Tokenizer

Images = Float[Tensor, "b 3 s s"]
Codes = Int[Tensor, "b *tokens"]


@dataclass
class TokenizerQuality:
    """Streaming: `update` per batch, `over_ranks` for all processes, then `metrics`."""

    judges: MetricNetworks
    usage: CodeUsage
    features: FeatureSet | None = None
    """Of the reconstructions; none without Inception, as `originals`."""
    originals: FeatureSet | None = None
    """Of the images themselves."""
    originals_known: bool = False
    """From an earlier evaluation; else they are collected along the way."""
    inspected: Int64[Tensor, " n"] | None = None
    """Numbers of the images that pass Inception; None for all."""
    pixels: ReconstructionQuality = field(default_factory=ReconstructionQuality)
    perceptual: Float64[Tensor, ""] = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    @classmethod
    def of(
        cls,
        judges: MetricNetworks,
        codebook_size: int,
        *,
        images: int,
        known: FeatureSet | None = None,
        inspected: Int64[Tensor, " n"] | None = None,
    ) -> "TokenizerQuality":
        """images: that are to come at most.

        known: the features of all of them, or of the inspected ones.
        inspected: numbers of those whose features are compared; None for all.
        """
        usage = CodeUsage.of(codebook_size)
        if judges.inception is None:
            return cls(judges, usage)
        sample = min(SAMPLE, images if inspected is None else len(inspected))
        originals = known or FeatureSet.of(FEATURES, sample=sample)
        features = FeatureSet.of(FEATURES, sample=sample)
        return cls(judges, usage, features, originals, known is not None, inspected)

    @torch.no_grad()
    def update(
        self, images: Images, reconstructions: Images, codes: Codes, numbers: Int[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """numbers: place of each image in the data set. Returns the PSNR of each."""
        self.usage.update(codes)
        if self.judges.lpips is not None:
            self.perceptual += self.judges.lpips(images, reconstructions).double().sum().cpu()
        chosen = self._chosen(numbers)
        if chosen.any():
            self._inspect(images[chosen], reconstructions[chosen], numbers[chosen])
        return self.pixels.update(images, reconstructions)

    def _chosen(self, numbers: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        if self.inspected is None:
            return torch.ones_like(numbers, dtype=torch.bool)
        return torch.isin(numbers, self.inspected)

    def _inspect(self, images: Images, reconstructions: Images, numbers: Int[Tensor, " b"]) -> None:
        if self.judges.inception is not None and self.features is not None and self.originals is not None:
            self.features.update(self.judges.inception(reconstructions), numbers)
            if not self.originals_known:
                self.originals.update(self.judges.inception(images), numbers)

    def over_ranks(self) -> "TokenizerQuality":
        """Of all processes."""
        originals = self.originals
        return TokenizerQuality(
            self.judges,
            self.usage.over_ranks(),
            self.features and self.features.over_ranks(),
            originals if self.originals_known else originals and originals.over_ranks(),
            self.originals_known,
            self.inspected,
            self.pixels.over_ranks(),
            sum_over_ranks(self.perceptual),
        )

    def metrics(self) -> dict[str, float]:
        """`reconstruction_loss` is the paper's without its GAN term: l1 + LPIPS, each of weight 1."""
        values = self.pixels.summary()
        if self.judges.lpips is not None:
            values["lpips"] = float(self.perceptual) / self.pixels.count
            values["reconstruction_loss"] = values["l1"] + values["lpips"]
        if self.features is not None and self.originals is not None:
            distances = self.features.compare(self.originals)
            values |= {"rfid" if name == "fid" else name: value for name, value in distances.items()}
        return values | self.usage.summary()


Reconstruct = Callable[[Images], tuple[Images, Codes]]
"""Images to reconstructions in [-1, 1] and the numbers of the codes in between."""


def through(tokenizer: Tokenizer) -> Reconstruct:
    """Images through a tokenizer; stages of a residual one have codes of their own."""

    @torch.no_grad()
    def reconstruct(images: Images) -> tuple[Images, Codes]:
        reconstruction, quantized = tokenizer(images)
        codes = quantized.indices
        if tokenizer.stages > 1:
            codes = codes + tokenizer.codebook_size * torch.arange(tokenizer.stages, device=codes.device)
        return reconstruction.float().clamp(-1, 1), codes

    return reconstruct
