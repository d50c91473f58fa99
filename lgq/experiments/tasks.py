"""What a row of a table asks for, and how its record is made.

A row trains a tokenizer and evaluates its best weights, trains a generator on the tokens of such a tokenizer,
or times a quantizer.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.bench.quantizers import QuantizerBenchmark
from lgq.bench.quantizers import run as run_benchmark
from lgq.bench.train import networks_ms
from lgq.config import to_json
from lgq.data import BrokenImage, ImageDataset, ImageLoader, LoaderSettings, to_png
from lgq.data.images import Subset, random_subset
from lgq.data.token_loader import TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset
from lgq.distributed import rank, world_size
from lgq.evaluation import draw_extremes
from lgq.experiments.results_directory import ResultsDirectory
from lgq.files import make_directory, replace_file
from lgq.hub import run_settings
from lgq.inference.encode import encode
from lgq.maskgit import MaskGIT, load_generator
from lgq.metrics.codebook_study import draw_study, study_codebook
from lgq.metrics.generation import evaluate_generation
from lgq.metrics.likelihood import measure_likelihood, token_entropies
from lgq.metrics.metric_networks import (
    LPIPS_METRICS,
    RECONSTRUCTION_FEATURE_METRICS,
    MetricNetworks,
)
from lgq.metrics.quality import evaluate_tokenizer
from lgq.metrics.reference import Reference
from lgq.models.transformer import MaskedTransformer
from lgq.quantizers import QUANTIZERS
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.generator_trainer import train_generator
from lgq.training.journal import read_records
from lgq.training.loop import DivergedError, Outcome, StopRequest
from lgq.training.run_directory import describe_environment
from lgq.training.settings import GeneratorRun, TokenizerRun
from lgq.training.tokenizer_trainer import train
from lgq.training.validation import image_grid

_UNRECORDED = {"workers"}
_UNRECORDED_OF_LOOP = {"log_every", "checkpoint_every", "keep", "minutes", "wandb"}
"""Settings that no number in a record depends on."""

_PROBES = 16
_SHOWN_IMAGES = 8
_SHOWN_SAMPLES = 16
_SHOWN_SEED = 0
_NO_NETWORKS = MetricNetworks(
    absent=dict.fromkeys(
        (*LPIPS_METRICS, *RECONSTRUCTION_FEATURE_METRICS), "this row is measured without networks"
    )
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TokenizerTask:
    """Train a tokenizer and evaluate its best weights."""

    kind: ClassVar[str] = "tokenizer"
    run: TokenizerRun
    images: int | None = None
    """Number of training images, a random subset that is the same for all rows; None takes all images."""
    metric_networks: bool = True
    """Whether rFID and LPIPS are measured; without them, only metrics of pixels and codes."""

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def steps(self) -> int:
        return self.run.loop.steps

    def seeded(self, seed: int) -> "TokenizerTask":
        return replace(self, run=replace(self.run, seed=seed))

    def name(self) -> str:
        run = self.run
        stages = f"-x{run.stages}" if run.stages > 1 else ""
        defaults = {p.name: p.default for p in signature(QUANTIZERS[run.quantizer]).parameters.values()}
        options = sorted(run.quantizer_options.items())
        changes = "".join(f"-{name}-{value}" for name, value in options if value != defaults.get(name))
        return f"{run.quantizer}-k{run.codebook_size}{stages}{changes}-s{run.seed}"

    def settings(self) -> dict[str, Any]:
        """Return all that the record depends on; an option given at its default makes no other run."""
        options = self.planned_tokenizer().settings["quantizer_options"]
        recorded = _recorded_settings(self.run) | {"quantizer_options": options}
        return recorded | {"images": self.images, "metric_networks": self.metric_networks}

    def parameters(self) -> int:
        """Return the number of learned parameters."""
        return sum(self.planned_tokenizer().parameter_counts().values())

    def planned_tokenizer(self) -> Tokenizer:
        """Return the tokenizer without memory for its weights."""
        run, options = self.run, {"seed": self.run.seed} | self.run.quantizer_options
        with torch.device("meta"):
            return Tokenizer(
                run.backbone, run.quantizer, run.codebook_size, stages=run.stages, quantizer_options=options
            )


@dataclass(frozen=True, kw_only=True)
class GeneratorTask:
    """Train a generator on the tokens of a tokenizer, whose row comes first, and evaluate it."""

    kind: ClassVar[str] = "generator"
    run: GeneratorRun
    tokenizer: TokenizerTask

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def steps(self) -> int:
        return self.run.loop.steps

    def seeded(self, seed: int) -> "GeneratorTask":
        return GeneratorTask(run=replace(self.run, seed=seed), tokenizer=self.tokenizer.seeded(seed))

    def name(self) -> str:
        return f"maskgit-{self.tokenizer.name()}"

    def settings(self) -> dict[str, Any]:
        return _recorded_settings(self.run) | {"tokenizer": self.tokenizer.settings()}

    def parameters(self) -> int:
        """Return the number of learned parameters with one class; each further class adds a vector."""
        return sum(p.numel() for p in self.planned_transformer("meta").parameters())

    def planned_transformer(self, device: str | torch.device) -> MaskedTransformer:
        run = self.tokenizer.run
        length = (run.image_size // run.backbone.factor) ** 2 * run.stages
        with torch.device(device):
            return MaskedTransformer(run.codebook_size, length, 1, self.run.transformer)


@dataclass(frozen=True, kw_only=True)
class CostTask:
    """Measure time and memory of a quantizer's forward and backward pass, by default on the paper's batch."""

    kind: ClassVar[str] = "cost"
    quantizer: str
    codebook_size: int
    tokens: int = 8_192
    """Vectors in a batch: 32 images of 256 tokens."""
    dim: int = 64
    """Channels of a vector."""
    repeats: int = 5
    around: TokenizerRun
    """Run whose encoder and decoder are timed for comparison."""

    seed: ClassVar[int] = 0
    steps: ClassVar[int] = 0

    def seeded(self, seed: int) -> "CostTask":
        """Return the task itself: a time has no seed."""
        return self

    def name(self) -> str:
        return f"cost-{self.quantizer}-k{self.codebook_size}"

    def settings(self) -> dict[str, Any]:
        return to_json(self) | {"around": _recorded_settings(self.around)}

    def parameters(self) -> int:
        return 0


Task = TokenizerTask | GeneratorTask | CostTask


def _recorded_settings(run: TokenizerRun | GeneratorRun) -> dict[str, Any]:
    values = to_json(run)
    loop = {name: value for name, value in values["loop"].items() if name not in _UNRECORDED_OF_LOOP}
    return {name: value for name, value in values.items() if name not in _UNRECORDED} | {"loop": loop}


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How much is measured."""

    images: int
    """Validation images, a fixed random subset, for reconstruction and as reference of generators."""
    geometry_images: int
    """Validation images for the study of codebooks, a fixed random subset."""
    samples: int
    """Images that a generator samples with each seed."""
    sampling_seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The images of an experiment."""

    data: ImageDataset
    validation: ImageDataset
    shown: ImageDataset
    """Images to show."""
    names: tuple[str, ...]
    """What the user calls the three."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the training and the validation images."""
        return _fingerprint(self.data) + _fingerprint(self.validation)


def _fingerprint(data: ImageDataset) -> str:
    """Hash a data set wherever it is stored: its size, its classes, and some of its images."""
    digest = hashlib.sha256(repr((len(data), tuple(getattr(data, "classes", ())))).encode())
    for index in sorted({i * (len(data) - 1) // (_PROBES - 1) for i in range(_PROBES)}):
        try:
            image = data[index]
        except BrokenImage:
            continue
        digest.update(repr((index, image.label)).encode() + hashlib.sha256(image.data).digest())
    return digest.hexdigest()[:16]


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A signal asked to stop; all finished work is kept."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What all rows of one call share."""

    results: ResultsDirectory
    scale: str
    image_size: int
    measuring: Measuring
    sources: Sources
    device: torch.device
    command: Sequence[str]
    stop: StopRequest

    @cached_property
    def networks(self) -> MetricNetworks:
        """Networks for reconstructions."""
        return MetricNetworks.available(self.device)

    @cached_property
    def generation_networks(self) -> MetricNetworks:
        """Networks for generated images."""
        return MetricNetworks.available(self.device, for_generation=True)

    @cached_property
    def evaluated(self) -> Subset:
        """Images on which reconstruction is measured, the same for all rows."""
        return random_subset(self.sources.validation, self.measuring.images)

    @cached_property
    def studied(self) -> Subset:
        """Images on which the geometry of codebooks is measured, the same for all rows."""
        return random_subset(self.sources.validation, self.measuring.geometry_images)

    @cached_property
    def shown(self) -> Float[Tensor, "b 3 s s"]:
        """Images to show, the same for all rows."""
        loading = LoaderSettings(image_size=self.image_size, batch_size=_SHOWN_IMAGES)
        return next(ImageLoader(self.sources.shown, loading).one_pass(_SHOWN_IMAGES)).images

    def origin(self, task: Task, id: str) -> dict[str, Any]:
        """Return where a record comes from."""
        return {
            "id": id,
            "kind": task.kind,
            "scale": self.scale,
            "command": list(self.command),
            "seed": task.seed,
            "environment": describe_environment(task.seed),
        }

    def check_stop(self, *_: int) -> None:
        """Raise `Stopped` if a signal asked to stop; called between batches."""
        if self.stop:
            raise Stopped


def tokenizer_record(context: Context, task: TokenizerTask, id: str) -> dict[str, Any]:
    """Train and evaluate a tokenizer; the record of a run that diverged has `failed`."""
    sources, out = context.sources, context.results.run(id)
    data = sources.data if task.images is None else random_subset(sources.data, task.images)
    try:
        outcome = train(task.run, data, out, val_data=sources.validation)
    except DivergedError as error:
        _log.warning("%s failed: %s", id, error)
        failure = {"config": run_settings(out), "metrics": {}, "failed": str(error)}
        return context.origin(task, id) | failure
    if outcome.reason == "interrupted":
        raise Stopped
    tokenizer = load_tokenizer(out).to(context.device)
    return (
        context.origin(task, id)
        | _training_part(context, id, outcome)
        | {"parameters": tokenizer.parameter_counts(), "fingerprint": tokenizer.fingerprint()}
        | _reconstruction_part(context, tokenizer, task, id)
    )


def _training_part(context: Context, id: str, outcome: Outcome) -> dict[str, Any]:
    run = context.results.run(id)
    records = read_records(run) if rank() == 0 else []
    return {
        "config": run_settings(run),
        "steps": outcome.step,
        "best_step": outcome.best_step,
        "ended": outcome.reason,
        "seconds": records[-1]["seconds"] if records else None,
    }


def _reconstruction_part(
    context: Context, tokenizer: Tokenizer, task: TokenizerTask, id: str
) -> dict[str, Any]:
    image_size, data = task.run.image_size, context.evaluated
    networks = context.networks if task.metric_networks else _NO_NETWORKS
    _log.info("evaluating %s on %s images", id, f"{len(data):,}")
    evaluation = evaluate_tokenizer(
        tokenizer, data, networks, image_size=image_size, on_progress=context.check_stop
    )
    study = study_codebook(tokenizer, context.studied, image_size=image_size, on_progress=context.check_stop)
    if rank() == 0:
        shown = tokenizer.decode(tokenizer.encode(context.shown.to(context.device)))
        pictures = {"reconstructions": strip_png(shown)}
        pictures |= draw_extremes(evaluation.scores, tokenizer, data, image_size)
        context.results.write_pictures(id, pictures | draw_study(study, method="pca"))
        _keep_originals(context)
    return (
        {"data": repr(data), "image_size": image_size}
        | evaluation.record()
        | {
            "geometry": study.metrics,
            "geometry_images": study.images,
            "absent": study.absent | evaluation.absent,
        }
    )


def _keep_originals(context: Context) -> None:
    """Write the images behind all reconstructions, once."""
    file = context.results.originals
    if not file.exists():
        make_directory(file.parent)
        replace_file(file, strip_png(context.shown))


def strip_png(images: Float[Tensor, "b 3 s s"]) -> bytes:
    """Return a PNG of images in a row, without gaps."""
    return to_png(torch.cat(list(images.cpu()), dim=2))


def generator_record(context: Context, task: GeneratorTask, id: str, tokenizer_id: str) -> dict[str, Any]:
    """Train and evaluate a generator, once the row of its tokenizer is finished."""
    tokenizer_row = context.results.record(tokenizer_id) or {}
    origin = context.origin(task, id) | {"tokenizer": tokenizer_id, "metrics": {}}
    config = {"tokenizer": tokenizer_row["config"]}
    if "failed" in tokenizer_row:
        return origin | {"config": config, "failed": f"its tokenizer failed: {tokenizer_row['failed']}"}
    tokenizer = load_tokenizer(context.results.run(tokenizer_id)).to(context.device)
    token_sets = _encode_sources(context, task, tokenizer, tokenizer_id)
    out = context.results.run(id)
    try:
        outcome = train_generator(
            task.run, token_sets[0], out, val_tokens=token_sets[-1], tokenizer=tokenizer
        )
    except DivergedError as error:
        _log.warning("%s failed: %s", id, error)
        return origin | {"config": config, "failed": str(error)}
    if outcome.reason == "interrupted":
        raise Stopped
    generator, training = load_generator(out).to(context.device), _training_part(context, id, outcome)
    return (
        origin
        | training
        | {"config": training["config"] | config, "fingerprint": tokenizer.fingerprint()}
        | {"parameters": {"transformer": sum(p.numel() for p in generator.transformer.parameters())}}
        | {"image_size": generator.image_size, "likelihood": _likelihood(context, generator, token_sets)}
        | _generation_part(context, task, generator)
        | {"shown_classes": _show_samples(context, task, generator, id)}
    )


def _encode_sources(
    context: Context, task: GeneratorTask, tokenizer: Tokenizer, tokenizer_id: str
) -> list[TokenDataset]:
    """Return the tokens for training and for validation; one set where the images are the same."""
    size, sources, results = task.tokenizer.run.image_size, context.sources, context.results
    encoded = [(sources.data, results.tokens(tokenizer_id), task.run.flips)]
    if sources.validation is not sources.data:
        encoded.append((sources.validation, results.validation_tokens(tokenizer_id), False))
    token_sets = []
    for data, out, flips in encoded:
        _log.info("encoding %s images for %s", f"{len(data):,}", tokenizer_id)
        token_sets.append(
            encode(tokenizer, data, out, image_size=size, flips=flips, on_progress=context.check_stop)
        )
    return token_sets


def _likelihood(context: Context, generator: MaskGIT, token_sets: list[TokenDataset]) -> dict[str, Any]:
    loading = TokenLoaderSettings(batch_size=32, rank=rank(), world_size=world_size())
    batches = TokenLoader(token_sets[-1], loading).one_pass()
    values = measure_likelihood(generator.transformer, batches, context.device)
    return values | token_entropies(*token_sets).record()


def _generation_part(context: Context, task: GeneratorTask, generator: MaskGIT) -> dict[str, Any]:
    """Measure gFID and related metrics over sampling seeds; they are absent without Inception."""
    networks, measuring = context.generation_networks, context.measuring
    common = {"data": repr(context.evaluated), "sampling": asdict(task.run.sampling)}
    if networks.inception is None:
        return common | {"metrics": {}, "std": {}, "absent": networks.absent, "fid": None}
    seeds = measuring.sampling_seeds
    _log.info("sampling %s images with each of %d seeds", f"{measuring.samples:,}", len(seeds))
    reference = Reference.from_images(
        context.evaluated,
        generator.image_size,
        networks.inception,
        context.device,
        on_progress=context.check_stop,
    )
    evaluation = evaluate_generation(
        lambda classes, seed: generator.generate(classes, task.run.sampling, seed=seed),
        len(generator.classes),
        reference,
        networks,
        samples=measuring.samples,
        seeds=seeds,
        device=context.device,
        on_progress=context.check_stop,
    )
    return common | evaluation.record()


def _show_samples(context: Context, task: GeneratorTask, generator: MaskGIT, id: str) -> list[str]:
    """Draw images of random classes, unselected: the same classes in the same places for every tokenizer."""
    random = torch.Generator().manual_seed(_SHOWN_SEED)
    classes = torch.randint(len(generator.classes), (_SHOWN_SAMPLES,), generator=random)
    if rank() == 0:
        images = generator.generate(classes, task.run.sampling, seed=_SHOWN_SEED)
        context.results.write_pictures(id, {"samples": to_png(image_grid(images.cpu()))})
    return [generator.classes[number] for number in classes.tolist()]


def cost_record(context: Context, task: CostTask, id: str) -> dict[str, Any]:
    """Time a quantizer as `lgq bench quantizers` does."""
    ours, *others = measure_cost(task)
    return context.origin(task, id) | {
        "config": task.settings(),
        "metrics": {name: value for name, value in ours.items() if not isinstance(value, str)},
        "others": others,
    }


def measure_cost(task: CostTask) -> list[dict[str, Any]]:
    """Time the implementations of a quantizer, ours first, and the networks around it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = QuantizerBenchmark(
        tokens=task.tokens,
        dim=task.dim,
        sizes=(task.codebook_size,),
        quantizers=(task.quantizer,),
        repeats=task.repeats,
        device=device,
    )
    around = networks_ms(task.around, task.tokens, torch.device(device), repeats=task.repeats)
    return [
        asdict(row) | {"networks_ms": around, "share_of_step": None if row.ms is None else row.ms / around}
        for row in run_benchmark(settings)
    ]
