"""Evaluation of a tokenizer or a generator: one record with the metrics of the paper's tables, and more.

    record = lgq.evaluate("runs/photos", data="photos")
    record.metrics["psnr"], record.absent, record.to_json()

    lgq.evaluate("runs/generator", data="photos").metrics["gfid"]
    lgq.evaluate("runs/generator", tokens="tokens/val").likelihood["nll"]

Under torchrun every process calls `evaluate`, takes a share of the images, and returns the same record. The
first process writes it.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lgq.checks import require_at_least
from lgq.data import ImageDataset, ImageLoader, LoaderSettings, open_dataset
from lgq.data.folder import require_apart
from lgq.data.images import SUFFIXES, Subset, random_subset
from lgq.data.loader import warn_of_enlarged
from lgq.data.tokens import TokenDataset, TokenMeaning, require_same_meaning
from lgq.distributed import rank
from lgq.errors import LGQError, warn
from lgq.files import WeightsChoice, require_writable, write_file
from lgq.hub import ModelKind, model_kind, published_weights, run_directory_of, run_settings
from lgq.inference import Device, generator_on_device, tokenizer_on_device
from lgq.maskgit import ONE_CLASS, MaskGIT
from lgq.metrics import fid
from lgq.metrics.codebook_study import draw_study, study_codebook
from lgq.metrics.generation import evaluate_generation, require_sample_plan
from lgq.metrics.likelihood import evaluate_likelihood
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import ImageScore, ReconstructionEvaluation, evaluate_tokenizer, reconstruct_with
from lgq.metrics.reference import Reference
from lgq.models.sampling import Sampling
from lgq.progress import Progress, unwatched
from lgq.quantizers.continuous import Continuous
from lgq.random import SAMPLING_BATCH
from lgq.results import RESULTS, append_result, strict
from lgq.tokenizer import Tokenizer
from lgq.training.run_directory import describe_environment

if TYPE_CHECKING:
    from lgq.plots.codebooks import Method

# `lgq.evaluation.fid.frechet_distance` is a documented name, though this module is no package.
sys.modules["lgq.evaluation.fid"] = fid

SAMPLES = 50_000
"""Number of images that are drawn with each seed by default."""
SEEDS = (0, 1, 2, 3)
DEFAULT_SAMPLING = Sampling()
EXTREME_IMAGES = 8
"""Number of images in each picture of the best, median and worst reconstructions."""

Source = str | Path | Tokenizer | MaskGIT
Draw = Callable[[], dict[str, bytes]]

SCORES = "scores.csv"
"""File with the scores of every image."""

_EXTREME_SIDE = 160
_FILE_SUFFIXES = (*SUFFIXES, ".json", ".jsonl", ".csv", ".txt", ".md", ".html", ".npz")
"""Endings of names that nobody means for a directory."""
_TOKENIZER_OPTIONS = ("image_size", "resamples", "geometry")
_DRAWING_OPTIONS = ("samples", "sampling_seeds", *vars(DEFAULT_SAMPLING))
_TOKENS_OPTIONS = ("masked_images", "train_tokens")
_GENERATOR_OPTIONS = ("reference", "tokens", *_DRAWING_OPTIONS, *_TOKENS_OPTIONS)
_NEEDED: dict[str, tuple[str, ...]] = {"images": ("data",)}
_NEEDED |= dict.fromkeys(_TOKENS_OPTIONS, ("tokens",)) | dict.fromkeys(
    _DRAWING_OPTIONS, ("data", "reference")
)
"""Options of a generator's evaluation that need one of others."""


@dataclass(frozen=True)
class EvaluationRecord:
    """Result of `evaluate`, as results.jsonl holds it (`lgq.results`)."""

    fields: dict[str, Any]
    """All fields of the record."""
    draw: Draw = dict
    """Function that draws the pictures of the evaluation: PNG files by name."""
    directory: Path | None = None
    """Directory that holds the record, its scores and its pictures; None if nothing was written."""
    scores: Sequence[ImageScore] = ()
    """Tokenizer: scores of every image that was read, as scores.csv holds them."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of reconstructions or of generated images; empty if only a likelihood was asked for."""
        metrics: dict[str, float] = self.fields.get("metrics", {})
        return metrics

    @property
    def absent(self) -> dict[str, str]:
        """Metrics that were not computed, each with the reason."""
        geometry: dict[str, Any] = self.fields.get("geometry", {})
        return {**self.fields.get("absent", {}), **geometry.get("absent", {})}

    @property
    def likelihood(self) -> dict[str, Any] | None:
        """Likelihood and entropies of `tokens`; None without them."""
        return self.fields.get("likelihood")

    def to_json(self) -> str:
        """Return the record as one line of JSON; NaN and infinity become null."""
        return json.dumps(strict(self.fields))


def evaluate(
    source: Source,
    data: str | Path | ImageDataset | None = None,
    *,
    images: int | None = None,
    image_size: int | None = None,
    resamples: int = 0,
    geometry: "Method | None" = None,
    reference: str | Path | None = None,
    samples: int | None = None,
    sampling_seeds: Sequence[int] = SEEDS,
    tokens: str | Path | None = None,
    masked_images: int | None = None,
    train_tokens: str | Path | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
    batch_size: int = SAMPLING_BATCH,
    workers: int = 1,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    out: str | Path | None = None,
    on_progress: Progress = unwatched,
) -> EvaluationRecord:
    """Measure a tokenizer on images, or a generator by its images, by the likelihood of tokens, or by both.

    source: a run directory, a directory that `save_pretrained` wrote, `photo-f8`, owner/name on the Hub, or a
        model.
    data: images to reconstruct, or to compare generated images with.
    images: size of a random subset of `data`, the same for every model; None for all.
    image_size: tokenizer: side to which the centre crop is brought; None for that of its run. Smaller images
        are enlarged, with a warning: their size measures them as they are.
    resamples: tokenizer: random resamples of the images that give rFID and KID a standard deviation, for
        example 100; 0 for none.
    geometry: tokenizer: study the codebook too, with plots by "umap", "pca" or "auto".
    reference: generator: .npz file with mu and sigma, to compare with in place of `data`.
    samples: generator: images to draw with each sampling seed; None for as many as `images`, else 50,000.
    sampling_seeds: generator: seeds of the images that are drawn.
    tokens: generator: directory of tokens whose likelihood is measured.
    masked_images: generator: number of images whose tokens are masked, evenly spread; None for all.
    train_tokens: generator: tokens of its training, for the cross-entropies of `tokens`.
    sampling: generator: how images are sampled.
    weights: weights of a run.
    device: where to compute, the words of `--device`; with "auto", a model stays on its device.
    out: directory for the record (results.jsonl), the scores of a tokenizer's images (scores.csv) and
        pictures, outside of a folder of `data`; None for RUN/evaluation, or for no files if `source` is no
        directory: a model, `photo-f8`, or a name on the Hub.
    on_progress: called with images, or resamples, done and in all, from 0 again for each part of the work.
    """
    given = _given_options(locals())
    if resamples < 0 or resamples == 1:
        raise LGQError(f"`resamples` must be 0, for none, or at least 2, got {resamples}: 100 are usual.")
    directory = _output_directory(source, out)
    origin = _origin(source, weights, given)
    kind: ModelKind = origin["kind"]
    for name in given:
        if name in (_GENERATOR_OPTIONS if kind == "tokenizer" else _TOKENIZER_OPTIONS):
            raise LGQError(f"this is a {kind}, to which `{name}` does not apply: leave it out.")
    dataset = None if data is None else open_dataset(data)
    if dataset is not None and out is not None:
        require_apart(Path(out), dataset, has_pictures=True)
    if dataset is not None and images is not None:
        if images > len(dataset):
            warn(f"{dataset} has {len(dataset):,} images, fewer than `images` {images:,}: all are taken.")
        dataset = random_subset(dataset, images)
    scores: Sequence[ImageScore] = ()
    loading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "on_progress": on_progress}
    if kind == "tokenizer":
        if dataset is None:
            raise LGQError("a tokenizer is evaluated on images: give `data`.")
        model: Any = tokenizer_on_device(source, weights, device)  # type: ignore[arg-type]  # its kind is known
        fields, draw, scores = _evaluate_tokenizer(
            model, dataset, model.resolve_image_size(image_size), resamples, geometry, loading
        )
    else:
        samples = (SAMPLES if images is None else images) if samples is None else samples
        _require_generator_options(given, dataset, samples, sampling_seeds, batch_size)
        model = generator_on_device(source, weights, device)  # type: ignore[arg-type]
        token_sets = _open_tokens(model, tokens, train_tokens)
        fields, draw = _evaluate_generator(
            model, dataset, reference, token_sets, masked_images, samples, sampling_seeds, sampling, loading
        )
    environment = {"environment": describe_environment(origin["seed"], next(model.parameters()).device)}
    record = EvaluationRecord(
        {"config": model.settings} | origin | environment | fields, draw, directory, scores
    )
    if directory is not None and rank() == 0:
        append_result(directory / RESULTS, record.fields)
        if scores:
            write_file(directory / SCORES, _as_csv(scores))
        for name, picture in draw().items():
            write_file(directory / f"{name}.png", picture)
    return record


def _given_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `evaluate` that differ from their defaults, `sampling` field by field."""
    given: dict[str, Any] = {}
    for name, parameter in signature(evaluate).parameters.items():
        default = parameter.default
        value = tuple(arguments[name]) if name == "sampling_seeds" else arguments[name]
        if name == "sampling":
            given |= {field: x for field, x in vars(value).items() if x != getattr(default, field)}
        elif name not in ("source", "on_progress") and value != default:
            given[name] = value
    return given


def _origin(source: Source, weights: WeightsChoice, given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that say what the model is, where it comes from, and this call."""
    if isinstance(source, Tokenizer | MaskGIT):
        kind = "tokenizer" if isinstance(source, Tokenizer) else "generator"
        return {"kind": kind, "command": None, "run": None, "weights": None, "seed": None}
    command = ["lgq", "evaluate", str(source)]
    for name, value in given.items():
        values = () if value is True else value if isinstance(value, tuple) else (value,)
        command += [f"--{name.replace('_', '-')}", *map(str, values)]
    published, settings = published_weights(source, weights), run_settings(source) or {}
    fields: dict[str, Any] = {"kind": model_kind(published), "command": command, "run": str(source)}
    fields |= {"weights": str(published), "seed": settings.get("seed")}
    return fields | ({"config": settings} if settings else {})


def _output_directory(source: Source, out: str | Path | None) -> Path | None:
    if out is not None:
        directory = Path(out)
        if directory.suffix.lower() in _FILE_SUFFIXES and not directory.is_dir():
            raise LGQError(
                f"`out` is a directory, for the record ({RESULTS}) and pictures, got {out}: give a name "
                f"without {directory.suffix}; `as_json` prints the record, for a file of your own."
            )
    elif isinstance(source, Tokenizer | MaskGIT) or not Path(source).is_dir():
        return None
    else:
        directory = run_directory_of(source) / "evaluation"
    require_writable(directory)
    return directory


def _evaluate_tokenizer(
    tokenizer: Tokenizer,
    data: ImageDataset,
    image_size: int,
    resamples: int,
    geometry: "Method | None",
    loading: dict[str, Any],
) -> tuple[dict[str, Any], Draw, list[ImageScore]]:
    """Return the fields of the record, the function that draws its pictures, and the scores of all images."""
    if geometry and isinstance(tokenizer.quantizer, Continuous):
        raise LGQError("`geometry` studies codes, and a continuous autoencoder has none: leave it out.")
    networks = MetricNetworks.available(tokenizer.device)
    evaluation = evaluate_tokenizer(
        tokenizer, data, networks, image_size=image_size, resamples=resamples, **loading
    )
    warn_of_enlarged(evaluation.sides, image_size, tokenizer.factor)
    study = study_codebook(tokenizer, data, image_size=image_size, **loading) if geometry else None

    def draw() -> dict[str, bytes]:
        pictures = draw_extremes(evaluation.scores, tokenizer, data, image_size)
        if tokenizer.levels > 1:
            pictures |= draw_progression(evaluation, tokenizer, data, image_size)
        return pictures | (draw_study(study, method=geometry) if study and geometry else {})

    fields = {"fingerprint": tokenizer.fingerprint(), "data": repr(data), "image_size": image_size}
    fields |= evaluation.record() | ({"geometry": study.record()} if study else {})
    return fields, draw, evaluation.scores


def _as_csv(scores: Sequence[ImageScore]) -> bytes:
    """Return a CSV file with the name of every image and its metrics."""
    columns = ["name", "psnr", "ssim"] + ["lpips"] * (scores[0].lpips is not None)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([getattr(score, column) for column in columns] for score in scores)
    # File names can be invalid Unicode, which must not make an evaluation fail.
    return text.getvalue().encode("utf-8", "backslashreplace")


def best_median_worst(scores: Iterable[ImageScore], count: int) -> dict[str, list[ImageScore]]:
    """Return the `count` images with the highest, the middle and the lowest PSNR, by those three names.

    Groups of few images overlap.
    """
    ranked = sorted(scores, key=lambda score: (-score.psnr, score.number))
    middle = max(0, (len(ranked) - count) // 2)
    return {"best": ranked[:count], "median": ranked[middle : middle + count], "worst": ranked[-count:][::-1]}


@torch.no_grad()
def draw_extremes(
    scores: Iterable[ImageScore], tokenizer: Tokenizer, data: ImageDataset, image_size: int
) -> dict[str, bytes]:
    """Draw the images with the best, median and worst PSNR above their reconstructions, as PNG by name."""
    # Imported here: matplotlib takes a second to load.
    from lgq.plots.pictures import reconstruction_grid

    pictures = {}
    for name, group in best_median_worst(scores, EXTREME_IMAGES).items():
        images = _crops(group, data, image_size)
        reconstructions = reconstruct_with(tokenizer)(images.to(tokenizer.device))[0].cpu()
        pictures[name] = reconstruction_grid(
            images,
            reconstructions,
            caption=f"{name} by PSNR: images above their reconstructions",
            remarks=[f"{score.psnr:.1f} dB" for score in group],
            scale=max(1, _EXTREME_SIDE // image_size),
        )
    return pictures


@torch.no_grad()
def draw_progression(
    evaluation: ReconstructionEvaluation, tokenizer: Tokenizer, data: ImageDataset, image_size: int
) -> dict[str, bytes]:
    """Draw images of median PSNR from the first stage or scale, the first two, ... all: PNG by name.

    Each row has the PSNR over all images of the evaluation.
    """
    from lgq.plots.pictures import progression  # here, as above

    images = _crops(best_median_worst(evaluation.scores, EXTREME_IMAGES)["median"], data, image_size)
    tokens = tokenizer.encode(images.to(tokenizer.device))
    rows = {"images": images}
    for i, level in enumerate(tokenizer.by_level(tokens)):
        own = " x ".join(map(str, level.shape[1:])) if tokenizer.scales else f"stage {i + 1}"
        name = f"{'+ ' * (i > 0)}{own}: {evaluation.metrics[f'psnr/{i}']:.2f} dB"
        rows[name] = tokenizer.decode(tokenizer.first_levels(tokens, i + 1)).cpu()
    kind = "scales" if tokenizer.scales else "stages"
    caption = f"images from their first {kind}, with the PSNR over {evaluation.images:,} images"
    return {"progression": progression(rows, caption=caption)}


def _crops(scores: Sequence[ImageScore], data: ImageDataset, image_size: int) -> torch.Tensor:
    """Return the centre crops of these images."""
    subset = Subset(data, [score.number for score in scores])
    loader = ImageLoader(subset, LoaderSettings(image_size=image_size, batch_size=len(scores)))
    return next(loader.one_pass()).images


def _require_generator_options(
    given: dict[str, Any],
    data: ImageDataset | None,
    samples: int,
    sampling_seeds: Sequence[int],
    batch_size: int,
) -> None:
    if data is not None and "reference" in given:
        raise LGQError("generated images are compared with `data` or with `reference`: give one of them.")
    if not given.keys() & {"data", "reference", "tokens"}:
        raise LGQError("a generator needs something to compare with: give `data`, `reference`, or `tokens`.")
    for name in given.keys() & _NEEDED.keys():
        if not given.keys() & set(_NEEDED[name]):
            needed = " or ".join(f"`{option}`" for option in _NEEDED[name])
            raise LGQError(f"`{name}` has no effect without {needed}: leave it out, or give {needed} too.")
    require_at_least(1, batch_size=batch_size, masked_images=given.get("masked_images", 1))
    if data is not None and len(data) < 2:
        raise LGQError(f"statistics need 2 images or more, got {len(data)} in {data!r}: give more data.")
    if data is not None or "reference" in given:
        require_sample_plan(samples, sampling_seeds, batch_size)


def _open_tokens(
    generator: MaskGIT, tokens: str | Path | None, train_tokens: str | Path | None
) -> list[TokenDataset]:
    """Open the tokens, then those of the training; both must be the generator's."""
    sets = [TokenDataset(path) for path in (tokens, train_tokens) if path is not None]
    height, width = generator.token_shape[:2]
    for token_set in sets:
        # A generator cannot tell images without labels from one class of that name.
        unlabelled = generator.classes == ONE_CLASS and not token_set.classes
        TokenMeaning(
            owner="the generator",
            fingerprint=generator.tokenizer.fingerprint(),
            codebook_size=generator.tokenizer.codebook_size,
            stages=generator.tokenizer.stages,
            scales=generator.tokenizer.scales,
            grid=(height, width),
            image_size=generator.image_size,
            classes=() if unlabelled else generator.classes,
        ).require_of(token_set)
    if sets:
        require_same_meaning(*sets)
    return sets


def _evaluate_generator(
    generator: MaskGIT,
    data: ImageDataset | None,
    reference_file: str | Path | None,
    tokens: list[TokenDataset],
    masked_images: int | None,
    samples: int,
    sampling_seeds: Sequence[int],
    sampling: Sampling,
    loading: dict[str, Any],
) -> tuple[dict[str, Any], Draw]:
    """Return the fields of the record, and the function that draws its pictures."""
    device = next(generator.transformer.parameters()).device
    fields = {"fingerprint": generator.tokenizer.fingerprint(), "image_size": generator.image_size}
    generates = data is not None or reference_file is not None
    if generates:
        # Whatever can fail early comes before the first long part of the work.
        networks = MetricNetworks.available(device, for_generation=True)
        inception = networks.require_inception()
        if reference_file is not None:
            reference = Reference.from_file(reference_file)
            reference.require_comparable(inception)
    batching = {name: loading[name] for name in ("batch_size", "on_progress")}
    if tokens:
        fields["likelihood"] = evaluate_likelihood(generator, *tokens, images=masked_images, **batching)
    if not generates:
        return fields, dict
    if data is not None:
        reference = Reference.from_images(data, generator.image_size, inception, device, **loading)
    evaluation = evaluate_generation(
        lambda classes, seed: generator.generate(classes, sampling, seed=seed),
        len(generator.classes),
        reference,
        networks,
        samples=samples,
        seeds=sampling_seeds,
        device=device,
        **batching,
    )

    def draw() -> dict[str, bytes]:
        # Imported here: matplotlib takes a second to load.
        from lgq.plots.pictures import sample_grid

        pictures = evaluation.pictures
        classes = [number % len(generator.classes) for number in range(len(pictures))]
        caption = f"The first {len(pictures)} images, none left out"
        return {"samples": sample_grid(pictures, classes, generator.classes, caption=caption)}

    return fields | {"sampling": asdict(sampling)} | evaluation.record(), draw
