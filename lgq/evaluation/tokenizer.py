"""How good is a tokenizer? Every column of the paper's tables, in one pass over a data set.

b = images, s = their side in pixels.

    judges = judges_at_hand(device)                                  # networks whose weights are here
    evaluation = evaluate_tokenizer(tokenizer, open_dataset("photos"), judges, image_size=256)
    evaluation.metrics["psnr"], evaluation.metrics["rfid"], evaluation.absent

Under torchrun each process takes a share, and the result is that of one process to float rounding.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.data import ImageDataset, ImageLoader, Loading
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.evaluation.codebook import CodeUsage
from lgq.evaluation.feature_set import FeatureSet
from lgq.evaluation.judges import Judges
from lgq.evaluation.reconstruction import ReconstructionQuality
from lgq.evaluation.reference import content_hash, find_reference, reference_path
from lgq.models.inception import FEATURES
from lgq.tokenizer import Tokenizer

Images = Float[Tensor, "b 3 s s"]
Reconstruct = Callable[[Images], tuple[Images, Int[Tensor, "b *tokens"]]]
"""Images to reconstructions in [-1, 1] and the numbers of the codes in between."""
Progress = Callable[[int, int], None]


@dataclass
class TokenizerQuality:
    """Streaming: `update` per batch, `over_ranks` for all processes, then `metrics`."""

    judges: Judges
    usage: CodeUsage
    reference: FeatureSet | None = None
    """Of the images themselves, where it is known before; else it is collected along the way."""
    pixels: ReconstructionQuality = field(default_factory=ReconstructionQuality)
    perceptual: Float[Tensor, ""] = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    features: FeatureSet | None = None
    originals: FeatureSet | None = None

    def __post_init__(self) -> None:
        if self.judges.inception is not None and self.features is None:
            self.features = FeatureSet.of(FEATURES)
            self.originals = None if self.reference else FeatureSet.of(FEATURES)

    @torch.no_grad()
    def update(
        self,
        images: Images,
        reconstructions: Images,
        codes: Int[Tensor, "b *tokens"],
        numbers: Int[Tensor, " b"],
    ) -> Float[Tensor, " b"]:
        """numbers: place of each image in the data set. Returns the PSNR of each."""
        ratios = self.pixels.update(images, reconstructions)
        self.usage.update(codes)
        if self.judges.lpips is not None:
            self.perceptual += self.judges.lpips(images, reconstructions).double().sum().cpu()
        if self.judges.inception is not None and self.features is not None:
            self.features.update(self.judges.inception(reconstructions), numbers)
            if self.originals is not None:
                self.originals.update(self.judges.inception(images), numbers)
        return ratios

    def over_ranks(self) -> "TokenizerQuality":
        return TokenizerQuality(
            self.judges,
            self.usage.over_ranks(),
            self.reference,
            self.pixels.over_ranks(),
            sum_over_ranks(self.perceptual),
            self.features and self.features.over_ranks(),
            self.originals and self.originals.over_ranks(),
        )

    def metrics(self) -> dict[str, float]:
        """`reconstruction_loss` is the paper's without its GAN term: l1 + LPIPS, each of weight 1."""
        values = self.pixels.summary()
        if self.judges.lpips is not None:
            values["lpips"] = float(self.perceptual) / self.pixels.count
            values["reconstruction_loss"] = values["l1"] + values["lpips"]
        reference = self.reference or self.originals
        if self.features is not None and reference is not None and self.pixels.count > 1:
            distances = self.features.compare(reference)
            values |= {"rfid": distances.pop("fid")} | distances
        return values | self.usage.summary()


class ImageScore(NamedTuple):
    """How well one image came out."""

    number: int
    """Its place in the data set."""
    psnr: float


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    metrics: dict[str, float]
    images: int
    """That were read, over all processes."""
    absent: dict[str, str]
    """Metrics that were not taken, and why."""
    fid: dict[str, Any] | None
    """The conventions behind rfid, kid, precision and recall; none where they are absent."""
    usage: CodeUsage
    scores: list[ImageScore]
    """Of this process' images."""
    broken: dict[str, str]
    """Images of this process that could not be read, with the reason."""


def evaluate_tokenizer(
    tokenizer: Tokenizer,
    data: ImageDataset,
    judges: Judges,
    *,
    image_size: int,
    batch_size: int = 32,
    workers: int = 0,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Centre-cropped images through a tokenizer in eval mode; float32 whatever it was trained in."""
    size = tokenizer.codebook_size * tokenizer.stages
    loading = Loading(
        image_size=image_size, batch_size=batch_size, workers=workers, rank=rank(), world_size=world_size()
    )
    device = next(tokenizer.parameters()).device
    return evaluate(through(tokenizer), size, ImageLoader(data, loading), judges, device, on_progress)


def evaluate(
    reconstruct: Reconstruct,
    codebook_size: int,
    loader: ImageLoader,
    judges: Judges,
    device: torch.device,
    on_progress: Progress | None = None,
) -> Evaluation:
    """The same of anything that reconstructs images, such as a JPEG encoder."""
    path, reference = _reference(loader, judges)
    quality = TokenizerQuality(judges, CodeUsage.of(codebook_size), reference)
    scores: list[ImageScore] = []
    for batch in loader.one_pass():
        images = batch.images.to(device)
        reconstructions, codes = reconstruct(images)
        ratios = quality.update(images, reconstructions, codes, batch.indices)
        pairs = zip(batch.indices.tolist(), ratios.tolist(), strict=True)
        scores += [ImageScore(*pair) for pair in pairs]
        if on_progress is not None:
            on_progress(batch.position, len(loader.dataset))
    everywhere = quality.over_ranks()
    if rank() == 0 and path is not None and everywhere.originals is not None:
        everywhere.originals.save(path)
    return Evaluation(
        metrics=everywhere.metrics(),
        images=everywhere.pixels.count,
        absent=judges.absent,
        fid=_conventions(everywhere),
        usage=everywhere.usage,
        scores=scores,
        broken=dict(loader.broken),
    )


def through(tokenizer: Tokenizer) -> Reconstruct:
    """Images through a tokenizer; stages of a residual one have codes of their own."""
    offsets = tokenizer.codebook_size * torch.arange(tokenizer.stages)

    @torch.no_grad()
    def reconstruct(images: Images) -> tuple[Images, Int[Tensor, "b *tokens"]]:
        reconstruction, quantized = tokenizer(images)
        codes = quantized.indices
        if tokenizer.stages > 1:
            codes = codes + offsets.to(codes.device)
        return reconstruction.clamp(-1, 1), codes

    return reconstruct


def _reference(loader: ImageLoader, judges: Judges) -> tuple[Path | None, FeatureSet | None]:
    if judges.inception is None:
        return None, None
    content, size = content_hash(loader.dataset), loader.settings.image_size
    path = reference_path(content, size, judges.inception.convention)
    return path, find_reference(path)


def _conventions(quality: TokenizerQuality) -> dict[str, Any] | None:
    reference = quality.reference or quality.originals
    if quality.judges.inception is None or reference is None or quality.pixels.count < 2:
        return None
    return asdict(quality.judges.inception.convention) | {
        "covariance": "divided by n - 1",
        "images": quality.pixels.count,
        "reference_images": reference.statistics.count,
        "reference_sha256": reference.statistics.gaussian().sha256,
        "sample": len(reference.sample.features),
    }


def best_median_worst(scores: Iterable[ImageScore], each: int) -> dict[str, list[ImageScore]]:
    """Images to look at: those with the highest, the middle and the lowest PSNR."""
    ranked = sorted(scores, key=lambda score: (-score.psnr, score.number))
    middle = max(0, len(ranked) // 2 - each // 2)
    worst: Iterator[ImageScore] = reversed(ranked[-each:])
    return {"best": ranked[:each], "median": ranked[middle : middle + each], "worst": list(worst)}
