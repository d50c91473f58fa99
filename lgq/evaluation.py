"""How good is a tokenizer? Every column of the paper's tables, in one pass over a data set.

    judges = judges_at_hand(device)                                  # networks whose weights are here
    evaluation = evaluate_tokenizer(tokenizer, open_dataset("photos"), judges, image_size=256)
    evaluation.metrics["psnr"], evaluation.metrics["rfid"], evaluation.absent

Under torchrun each process takes a share, and the result is that of one process to float rounding.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from lgq.checks import require_at_least
from lgq.data import DataError, ImageDataset, ImageLoader, LoaderSettings
from lgq.data.images import Subset
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.metric_networks import NEED_INCEPTION, MetricNetworks
from lgq.metrics.quality import Reconstruct, TokenizerQuality, through
from lgq.metrics.reference import Reference, share_of_images
from lgq.models import in_eval_mode
from lgq.progress import Progress, unwatched
from lgq.tokenizer import Tokenizer

_EXTREME_IMAGES, _EXTREME_SIDE = 8, 160
"""Number of images per picture of `draw_extremes`, and the side in pixels to which small ones are scaled."""


class ImageScore(NamedTuple):
    """How well one image came out."""

    number: int
    """Its place in the data set."""
    psnr: float


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, over all processes."""

    metrics: dict[str, float]
    images: int
    """That were read."""
    absent: dict[str, str]
    """Metrics that were not taken, and why."""
    fid: dict[str, Any] | None
    """The conventions behind rfid, kid, precision and recall; none where they are absent."""
    lpips: dict[str, Any] | None
    """The weights behind lpips and reconstruction_loss, likewise."""
    usage: CodeUsage
    scores: list[ImageScore]
    """Of every image that was read."""
    broken: dict[str, str]
    """Images that could not be read, with the reason."""

    def record(self) -> dict[str, Any]:
        """Its part of a results record (`lgq.results`)."""
        unreported = ("usage", "scores")
        return {name: value for name, value in vars(self).items() if name not in unreported}


def evaluate_tokenizer(
    tokenizer: Tokenizer,
    data: ImageDataset,
    judges: MetricNetworks,
    *,
    image_size: int,
    batch_size: int = 32,
    workers: int = 0,
    use_cache: bool = True,
    on_progress: Progress = unwatched,
) -> Evaluation:
    """Centre-cropped images through a tokenizer, in eval mode and in the precision of its weights.

    use_cache: take the features of the images from the cache of an earlier evaluation, or leave them there.
    """
    device = tokenizer.device
    loader = share_of_images(data, device, image_size=image_size, batch_size=batch_size, workers=workers)
    codes = tokenizer.codebook_size * tokenizer.stages
    with in_eval_mode(tokenizer):
        return evaluate(
            through(tokenizer), codes, loader, judges, device, use_cache=use_cache, on_progress=on_progress
        )


def evaluate(
    reconstruct: Reconstruct,
    codebook_size: int,
    loader: ImageLoader,
    judges: MetricNetworks,
    device: torch.device,
    *,
    use_cache: bool = True,
    on_progress: Progress = unwatched,
) -> Evaluation:
    """The same of anything that reconstructs images; what has no codes, such as JPEG, gives zeros of one."""
    total, reference = len(loader.dataset), _reference(loader, judges)
    known = reference.features if reference and use_cache else None
    quality = TokenizerQuality.of(judges, codebook_size, images=total, known=known)
    ratios, read = torch.zeros(total, dtype=torch.float64), torch.zeros(total, dtype=torch.int64)
    for batch in loader.one_pass(may_be_empty=True):
        images = batch.images.to(device, non_blocking=True)
        reconstructions, codes = reconstruct(images)
        ratios[batch.indices] = quality.update(images, reconstructions, codes, batch.indices).double()
        read[batch.indices] = 1
        on_progress(batch.position, total)
    everywhere, ratios, read = quality.over_ranks(), sum_over_ranks(ratios), sum_over_ranks(read)
    if everywhere.pixels.count == 0:
        raise DataError(f"none of {total:,} images can be read in {loader.dataset!r}.")
    new = None if everywhere.originals_known else everywhere.originals
    if reference and new and use_cache and rank() == 0:
        reference.keep(new)
    scores = [ImageScore(number, float(ratios[number])) for number in read.nonzero().flatten().tolist()]
    return _summed_up(everywhere, reference, scores, loader)


def best_median_worst(scores: Iterable[ImageScore], count: int) -> dict[str, list[ImageScore]]:
    """Return the `count` images with the highest, the middle and the lowest PSNR, by those three names.

    Groups of few images overlap.
    """
    require_at_least(1, count=count)
    ranked = sorted(scores, key=lambda score: (-score.psnr, score.number))
    middle = max(0, (len(ranked) - count) // 2)
    return {
        "best": ranked[:count],
        "median": ranked[middle : middle + count],
        "worst": ranked[-count:][::-1],
    }


@torch.no_grad()
def draw_extremes(
    scores: Iterable[ImageScore], tokenizer: Tokenizer, data: ImageDataset, image_size: int
) -> dict[str, bytes]:
    """Draw the images with the best, median and worst PSNR above their reconstructions, as PNG by name."""
    # Imported here: matplotlib takes a second to load.
    from lgq.plots.pictures import reconstruction_grid

    pictures = {}
    for name, group in best_median_worst(scores, _EXTREME_IMAGES).items():
        subset = Subset(data, [score.number for score in group])
        loader = ImageLoader(subset, LoaderSettings(image_size=image_size, batch_size=len(group)))
        images = next(loader.one_pass()).images
        reconstructions = tokenizer.decode(tokenizer.encode(images.to(tokenizer.device))).cpu()
        pictures[name] = reconstruction_grid(
            images,
            reconstructions,
            caption=f"{name} by PSNR: images above their reconstructions",
            remarks=[f"{score.psnr:.1f} dB" for score in group],
            scale=max(1, _EXTREME_SIDE // image_size),
        )
    return pictures


def _reference(loader: ImageLoader, judges: MetricNetworks) -> Reference | None:
    if judges.inception is None:
        return None
    return Reference.find(loader.dataset, loader.settings.image_size, judges.inception.convention)


def _summed_up(
    quality: TokenizerQuality, reference: Reference | None, scores: list[ImageScore], loader: ImageLoader
) -> Evaluation:
    metrics, judges, images = quality.metrics(), quality.judges, quality.pixels.count
    missing = [name for name in NEED_INCEPTION if judges.inception and name not in metrics]
    too_few = dict.fromkeys(missing, f"{images} images are too few for it: take 4 or more.")
    conventions = None
    if judges.inception and quality.originals and reference and "rfid" in metrics:
        conventions = asdict(judges.inception.convention) | {
            "covariance": "divided by n - 1",
            "image_size": loader.settings.image_size,
            "images": images,
            "reference_images": quality.originals.statistics.count,
            "reference_sha256": reference.content,
            "sample": len(quality.originals.sample.features),
        }
    return Evaluation(
        metrics=metrics,
        images=images,
        absent=judges.absent | too_few,
        fid=conventions,
        lpips=None if judges.lpips is None else {"weights_sha256": judges.lpips.weights_sha256},
        usage=quality.usage,
        scores=scores,
        broken=_of_all_processes(loader.broken),
    )


def _of_all_processes(broken: dict[str, str]) -> dict[str, str]:
    if world_size() == 1:
        return dict(broken)
    parts: list[dict[str, str]] = [{} for _ in range(world_size())]
    dist.all_gather_object(parts, broken)
    return {name: reason for part in parts for name, reason in part.items()}
