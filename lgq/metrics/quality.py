"""Quality of a tokenizer: pixels, LPIPS, Inception features and code usage, in one pass over a data set.

b = images, s = their side in pixels.

    networks = MetricNetworks.available(device)
    evaluation = evaluate_tokenizer(tokenizer, open_dataset("photos"), networks, image_size=256)
    evaluation.metrics["psnr"], evaluation.metrics["rfid"], evaluation.absent

Under torchrun each process takes a share of the images, and the result is that of one process to rounding.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from lgq.data import DataError, ImageDataset, ImageLoader, LoaderSettings
from lgq.data.loader import loaded_onto
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.features import SAMPLE, FeatureSet, too_few_images
from lgq.metrics.fid import warn_of_few_images
from lgq.metrics.metric_networks import RECONSTRUCTION_FEATURE_METRICS, MetricNetworks
from lgq.metrics.reconstruction import ReconstructionQuality, psnr
from lgq.metrics.reference import CachedFeatures
from lgq.models import in_eval_mode
from lgq.models.inception import FEATURES
from lgq.progress import Progress, unwatched
from lgq.quantizers.continuous import Continuous
from lgq.tokenizer import Tokenizer

Images = Float[Tensor, "b 3 s s"]
Codes = Int[Tensor, "b *tokens"]

Reconstruct = Callable[[Images], tuple[Images, Codes]]
"""Function from images to reconstructions in [-1, 1] and the indices of their codes."""

Key = TypeVar("Key", int, str)

_PER_IMAGE = ("psnr", "ssim", "lpips")
"""Metrics that are kept for each image."""
_PER_LEVEL = ("utilization", "perplexity")
"""Measures of use that each stage or scale has of its own."""


@dataclass
class TokenizerQuality:
    """Streaming metrics of reconstructions: `update` per batch, `over_ranks`, then `metrics`."""

    networks: MetricNetworks
    usage: CodeUsage
    features: FeatureSet | None = None
    """Features of the reconstructions; None without Inception, as `reference`."""
    reference: FeatureSet | None = None
    """Features of the images themselves."""
    reference_is_given: bool = False
    """Whether `reference` comes from an earlier evaluation; otherwise it is collected along the way."""
    feature_images: Int64[Tensor, " n"] | None = None
    """Numbers of the images whose features are compared; None for all."""
    pixels: ReconstructionQuality = field(default_factory=ReconstructionQuality)
    lpips_sum: Float64[Tensor, ""] = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    @classmethod
    def empty(
        cls,
        networks: MetricNetworks,
        codebook_size: int,
        *,
        images: int,
        reference: FeatureSet | None = None,
        feature_images: Int64[Tensor, " n"] | None = None,
    ) -> "TokenizerQuality":
        """images: largest number of images to come, over all processes.

        reference: features of the images from an earlier evaluation, which saves half of Inception's work.
        feature_images: numbers of the images whose features are compared; None for all.
        """
        usage = CodeUsage.empty(codebook_size)
        if networks.inception is None:
            return cls(networks, usage)
        sample = min(SAMPLE, images if feature_images is None else len(feature_images))
        features = FeatureSet.empty(FEATURES, sample=sample)
        collected = reference or FeatureSet.empty(FEATURES, sample=sample)
        return cls(networks, usage, features, collected, reference is not None, feature_images)

    @torch.no_grad()
    def update(
        self, images: Images, reconstructions: Images, codes: Codes, numbers: Int[Tensor, " b"]
    ) -> dict[str, Float[Tensor, " b"]]:
        """Add a batch and return psnr, ssim, l1 and, with its network, lpips of each image.

        numbers: place of each image in the data set.
        """
        self.usage.update(codes)
        scores = self.pixels.update(images, reconstructions)
        if self.networks.lpips is not None:
            scores["lpips"] = self.networks.lpips(images, reconstructions).cpu()
            self.lpips_sum += scores["lpips"].cpu().double().sum()
        if self.networks.inception is not None and self.features is not None and self.reference is not None:
            chosen = numbers if self.feature_images is None else self.feature_images
            mask, inception = torch.isin(numbers, chosen), self.networks.inception
            if mask.any():
                self.features.update(inception(reconstructions[mask]), numbers[mask])
                if not self.reference_is_given:
                    self.reference.update(inception(images[mask]), numbers[mask])
        return scores

    def over_ranks(self) -> "TokenizerQuality":
        """Return the metrics of all processes."""
        reference = self.reference
        return replace(
            self,
            usage=self.usage.over_ranks(),
            features=self.features and self.features.over_ranks(),
            reference=reference if self.reference_is_given else reference and reference.over_ranks(),
            pixels=self.pixels.over_ranks(),
            lpips_sum=sum_over_ranks(self.lpips_sum),
        )

    def metrics(self) -> dict[str, float]:
        """Return all metrics; `reconstruction_loss` is the paper's without its GAN term: l1 + LPIPS."""
        values = self.pixels.summary()
        if self.networks.lpips is not None:
            values["lpips"] = float(self.lpips_sum) / self.pixels.count
            values["reconstruction_loss"] = values["l1"] + values["lpips"]
        if self.features is not None and self.reference is not None:
            distances = self.features.compare(self.reference)
            values |= {"rfid" if name == "fid" else name: value for name, value in distances.items()}
        return values | self.usage.summary()

    def bootstrap_deviations(self, resamples: int, on_progress: Progress = unwatched) -> dict[str, float]:
        """Return the standard deviations of rfid and kid over random resamples of the images."""
        if self.features is None or self.reference is None:
            return {}
        deviations = self.features.bootstrap_deviations(self.reference, resamples, on_progress)
        return {"rfid" if name == "fid" else name: value for name, value in deviations.items()}


class ImageScore(NamedTuple):
    """Quality of one image."""

    number: int
    """Place in the data set."""
    name: str
    """Name in the data set."""
    psnr: float
    ssim: float
    lpips: float | None
    """None without the network."""


@dataclass(frozen=True)
class ReconstructionEvaluation:
    """Results of `evaluate_tokenizer`, over all processes."""

    metrics: dict[str, float]
    images: int
    """Number of images that were read."""
    absent: dict[str, str]
    """Metrics that were not computed, each with the reason."""
    fid: dict[str, Any] | None
    """Conventions behind rfid, kid, precision and recall; None where they are absent."""
    lpips: dict[str, Any] | None
    """Weights behind lpips and reconstruction_loss; None where they are absent."""
    bootstrap_std: dict[str, float]
    """Standard deviations of rfid and kid over random resamples of the images; empty where not asked for."""
    standard_error: dict[str, float]
    """Standard errors of the means psnr, ssim and lpips; empty for one image."""
    usage: CodeUsage
    scores: list[ImageScore]
    """Scores of every image that was read."""
    broken: dict[str, str]
    """Images that could not be read, each with the reason."""
    sides: Int64[Tensor, " n"]
    """Shorter side of the crop of every image that was read, before it was resized."""
    enlarged: int
    """Number of images that are smaller than the image size."""

    def record(self) -> dict[str, Any]:
        """Return the part of a results record (`lgq.results`)."""
        return {name: value for name, value in vars(self).items() if name not in ("usage", "scores", "sides")}


def evaluate_tokenizer(
    tokenizer: Tokenizer,
    data: ImageDataset,
    networks: MetricNetworks,
    *,
    image_size: int,
    batch_size: int = 32,
    workers: int = 0,
    use_cache: bool = True,
    resamples: int = 0,
    on_progress: Progress = unwatched,
) -> ReconstructionEvaluation:
    """Reconstruct centre crops, in eval mode and in the precision of the weights, and measure them.

    Where there are several stages or scales, each has its own `utilization/i` and `perplexity/i`, and
    `psnr/i` is that of images decoded from levels 0 to i.

    use_cache: read the features of the images from the cache of an earlier evaluation, or write them there.
    resamples: number of random resamples of the images that give rFID and KID a standard deviation; 0 for
        none.
    """
    device, codes = tokenizer.device, tokenizer.codebook_size * tokenizer.levels
    settings = LoaderSettings.of_process(
        device, image_size=image_size, batch_size=batch_size, workers=workers
    )
    options: dict[str, Any] = {"use_cache": use_cache, "resamples": resamples, "on_progress": on_progress}
    reconstruct, psnr_sums = reconstruct_with(tokenizer), torch.zeros(tokenizer.levels, dtype=torch.float64)

    def reconstruct_levels(images: Images) -> tuple[Images, Codes]:
        reconstruction, codes = reconstruct(images)
        coarser = _from_first_levels(tokenizer, codes, images)
        for i, pictures in enumerate([*coarser, reconstruction]):
            psnr_sums[i] += psnr(images, pictures).cpu().double().sum()
        return reconstruction, codes

    with in_eval_mode(tokenizer):
        evaluation = evaluate_reconstructions(
            reconstruct if tokenizer.levels == 1 else reconstruct_levels,
            codes,
            ImageLoader(data, settings),
            networks,
            device,
            **options,
        )
    if isinstance(tokenizer.quantizer, Continuous):
        return _without_codes(evaluation)
    if tokenizer.levels == 1:
        return evaluation
    by_level = enumerate(evaluation.usage.by_stage(tokenizer.levels))
    own = {f"{name}/{i}": getattr(usage, name) for i, usage in by_level for name in _PER_LEVEL}
    means = (sum_over_ranks(psnr_sums) / evaluation.images).tolist()
    own |= {f"psnr/{i}": value for i, value in enumerate(means)}
    return replace(evaluation, metrics=evaluation.metrics | own)


def _without_codes(evaluation: ReconstructionEvaluation) -> ReconstructionEvaluation:
    """Leave out the use of codes, which is perfect where there is only one "code" for everything."""
    use = evaluation.usage.summary().keys()
    metrics = {name: value for name, value in evaluation.metrics.items() if name not in use}
    absent = dict.fromkeys(use, "a continuous autoencoder has no codes.")
    return replace(evaluation, metrics=metrics, absent=evaluation.absent | absent)


def _from_first_levels(tokenizer: Tokenizer, codes: Codes, images: Images) -> Iterator[Images]:
    """Decode images from the first stage or scale, the first two, and so on, but not from all.

    codes: as `reconstruct_with` returns them.
    """
    tokens = codes % tokenizer.codebook_size
    grid = (images.shape[2] // tokenizer.factor, images.shape[3] // tokenizer.factor)
    for levels in range(1, tokenizer.levels):
        yield tokenizer.decode(tokenizer.first_levels(tokens, levels, grid), grid).float()


def reconstruct_with(tokenizer: Tokenizer) -> Reconstruct:
    """Return the reconstruction function of a tokenizer; codes of each stage or scale are counted apart."""

    @torch.no_grad()
    def reconstruct(images: Images) -> tuple[Images, Codes]:
        reconstruction, quantized = tokenizer(images)
        codes = quantized.indices
        if tokenizer.stages > 1:
            codes = codes + tokenizer.codebook_size * torch.arange(tokenizer.stages, device=codes.device)
        if tokenizer.scales:
            height, width = (side // tokenizer.factor for side in images.shape[2:])
            grids = enumerate(tokenizer.by_level(codes, (height, width)))
            codes = torch.cat([grid.flatten(1) + tokenizer.codebook_size * i for i, grid in grids], 1)
        return reconstruction.float().clamp(-1, 1), codes

    return reconstruct


def evaluate_reconstructions(
    reconstruct: Reconstruct,
    codebook_size: int,
    loader: ImageLoader,
    networks: MetricNetworks,
    device: torch.device,
    *,
    use_cache: bool = True,
    resamples: int = 0,
    on_progress: Progress = unwatched,
) -> ReconstructionEvaluation:
    """Measure any function that reconstructs images; one without codes, such as JPEG, returns zeros."""
    total, cached = len(loader.dataset), None
    if networks.inception is not None:
        size, convention = loader.settings.image_size, networks.inception.convention
        cached = CachedFeatures.find(loader.dataset, size, convention)
    reference = cached.features if cached and use_cache else None
    quality = TokenizerQuality.empty(networks, codebook_size, images=total, reference=reference)
    measures = [name for name in _PER_IMAGE if name != "lpips" or networks.lpips is not None]
    scores, names = torch.zeros(len(measures), total, dtype=torch.float64), dict[int, str]()
    sides = torch.zeros(total, dtype=torch.int64)
    for batch in loader.one_pass(may_be_empty=True):
        images = loaded_onto(device, batch.images)
        reconstructions, codes = reconstruct(images)
        own = quality.update(images, reconstructions, codes, batch.indices)
        scores[:, batch.indices] = torch.stack([own[name] for name in measures]).cpu().double()
        names |= zip(batch.indices.tolist(), batch.names, strict=True)
        sides[batch.indices] = batch.sides
        on_progress(batch.position, total)
    quality, scores, sides = quality.over_ranks(), sum_over_ranks(scores), sum_over_ranks(sides)
    names = _gathered(names)
    if quality.pixels.count == 0:
        raise DataError(f"none of {total:,} images can be read in {loader.dataset!r}.")
    if cached and use_cache and quality.reference and not quality.reference_is_given and rank() == 0:
        cached.save(quality.reference)
    metrics, images_read = quality.metrics(), quality.pixels.count
    was_read = sides.nonzero().flatten()
    if "rfid" in metrics:
        warn_of_few_images("rFID", images_read, FEATURES)
    missing = [name for name in RECONSTRUCTION_FEATURE_METRICS if cached and name not in metrics]
    return ReconstructionEvaluation(
        metrics=metrics,
        images=images_read,
        absent=networks.absent | {name: too_few_images(name, images_read) for name in missing},
        fid=_fid_conventions(quality, cached, loader) if cached and "rfid" in metrics else None,
        lpips=None if networks.lpips is None else {"weights_sha256": networks.lpips.weights_sha256},
        bootstrap_std=quality.bootstrap_deviations(resamples, on_progress),
        standard_error=_standard_errors(dict(zip(measures, scores[:, was_read], strict=True))),
        usage=quality.usage,
        scores=[
            ImageScore(number, names[number], **({"lpips": None} | dict(zip(measures, values, strict=True))))
            for number, values in zip(was_read.tolist(), scores[:, was_read].T.tolist(), strict=True)
        ],
        broken=_gathered(loader.broken),
        sides=sides[was_read],
        enlarged=int((sides[was_read] < loader.settings.image_size).sum()),
    )


def _fid_conventions(
    quality: TokenizerQuality, cached: CachedFeatures, loader: ImageLoader
) -> dict[str, Any]:
    assert quality.networks.inception is not None
    assert quality.reference is not None
    return asdict(quality.networks.inception.convention) | {
        "covariance": "divided by n - 1",
        "image_size": loader.settings.image_size,
        "images": quality.pixels.count,
        "reference_images": quality.reference.statistics.count,
        "reference_sha256": cached.content_sha256,
        "sample": len(quality.reference.sample.features),
    }


def _standard_errors(scores: dict[str, Float64[Tensor, " n"]]) -> dict[str, float]:
    """Return the standard error of the mean of each score; none where a score is infinite."""
    errors = {name: float(x.std() / len(x) ** 0.5) for name, x in scores.items() if len(x) > 1}
    return {name: error for name, error in errors.items() if math.isfinite(error)}


def _gathered(own: dict[Key, str]) -> dict[Key, str]:
    """Return the entries of all processes."""
    if world_size() == 1:
        return dict(own)
    parts: list[dict[Key, str]] = [{} for _ in range(world_size())]
    dist.all_gather_object(parts, own)
    return {key: value for part in parts for key, value in part.items()}
