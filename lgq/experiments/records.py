"""How the record of a row is made: train and evaluate an autoencoder, tokenizer or generator, or time one."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load, save
from torch import Tensor

from lgq.bench.quantizers import QuantizerBenchmark
from lgq.bench.quantizers import run as run_benchmark
from lgq.bench.train import networks_ms
from lgq.data import ImageDataset, ImageLoader, LoaderSettings, to_png
from lgq.data.images import random_subset
from lgq.data.transforms import image_grid
from lgq.distributed import rank, world_size
from lgq.evaluation import draw_extremes, evaluate
from lgq.experiments.plan import PlannedExperiment
from lgq.experiments.quantizer_alone import TEST_VECTORS_PER_CODE, measure_alone, random_rows, train_alone
from lgq.experiments.speech import measure_speech, train_speech
from lgq.experiments.tasks import (
    BUSY_LOAD,
    AutoencoderTask,
    CostTask,
    GaussianTask,
    GeneratorTask,
    LatentsTask,
    SpeechTask,
    Task,
    TokenizerTask,
)
from lgq.files import write_file
from lgq.hub import run_settings
from lgq.inference.encode import encode
from lgq.maskgit import MaskGIT, load_generator
from lgq.metrics.codebook_study import draw_study, study_codebook
from lgq.metrics.metric_networks import (
    GENERATION_FEATURE_METRICS,
    RECONSTRUCTION_FEATURE_METRICS,
    MetricNetworks,
)
from lgq.metrics.quality import evaluate_tokenizer
from lgq.models import in_eval_mode
from lgq.random import Stream, random_order
from lgq.results import ResultsError
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.generator_trainer import train_generator
from lgq.training.journal import read_records
from lgq.training.loop import DivergedError, Outcome, StopRequest
from lgq.training.run_directory import describe_environment
from lgq.training.tokenizer_trainer import train
from lgq.weights import WeightsError

_SHOWN_IMAGES, _SHOWN_SAMPLES = 8, 16
_SAMPLES_SEED = 0
_UNSEEN_SEED = 10**6
"""Seed of the Gaussian vectors that are measured; above all training seeds."""
_MEASURED_RECORDINGS = 10
"""One in so many recordings is measured, and not trained on."""
_LATENTS_BATCH = 64
_RESAMPLES = 100
"""Resamples of the images behind the deviations of rFID and KID: seconds, and 7% of error."""
_NO_INCEPTION = dict.fromkeys(RECONSTRUCTION_FEATURE_METRICS, "this row is measured without Inception")

_log = logging.getLogger(__name__)


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A signal asked to stop; all finished work is kept."""


@dataclass(frozen=True)
class Context:
    """What all rows of one call share."""

    planned: PlannedExperiment
    device: torch.device
    command: Sequence[str]
    stop: StopRequest

    def check_stop(self, *_: int) -> None:
        """Raise `Stopped` if a signal asked to stop; called between batches."""
        if self.stop:
            raise Stopped


def make_record(context: Context, task: Task, id: str) -> dict[str, Any]:
    """Do what a row asks for; the record of a training that diverged has `failed`."""
    try:
        if isinstance(task, AutoencoderTask):
            record = _autoencoder_record(context, task, id)
        elif isinstance(task, TokenizerTask):
            record = _tokenizer_record(context, task, id)
        elif isinstance(task, GeneratorTask):
            record = _generator_record(context, task, id)
        elif isinstance(task, GaussianTask):
            record = _gaussian_record(context, task)
        elif isinstance(task, LatentsTask):
            record = _latents_record(context, task)
        elif isinstance(task, SpeechTask):
            record = _speech_record(context, task)
        else:
            ours, *others = measure_cost(task, context.device)
            metrics = {name: value for name, value in ours.items() if not isinstance(value, str)}
            record = {"config": task.settings(), "metrics": metrics, "others": others}
    except DivergedError as error:
        _log.warning("%s failed: %s", id, error)
        record = {"config": task.settings(), "metrics": {}, "failed": str(error)}
    tokenizer_id = context.planned.id_of(task.tokenizer) if isinstance(task, GeneratorTask) else None
    return record | {
        "id": id,
        "kind": task.kind,
        "tokenizer": tokenizer_id,
        "scale": context.planned.scale.name,
        "command": list(context.command),
        "seed": task.seed,
        "environment": describe_environment(task.seed, context.device),
    }


def _autoencoder_record(context: Context, task: AutoencoderTask, id: str) -> dict[str, Any]:
    sources, out = context.planned.sources, context.planned.results.run(id)
    outcome = train(task.run, sources.data, out, val_data=sources.choosing, device=context.device)
    autoencoder = load_tokenizer(out).to(context.device)
    data = random_subset(sources.reported, context.planned.scale.measuring.images)
    evaluation = evaluate_tokenizer(
        autoencoder,
        data,
        _without_inception(context.device),
        image_size=task.run.image_size,
        on_progress=context.check_stop,
    )
    return (
        _training_part(outcome, out)
        | {"parameters": autoencoder.parameter_counts(), "fingerprint": autoencoder.fingerprint()}
        | {"data": repr(data), "image_size": task.run.image_size}
        | evaluation.record()
    )


def _tokenizer_record(context: Context, task: TokenizerTask, id: str) -> dict[str, Any]:
    sources, out = context.planned.sources, context.planned.results.run(id)
    data = sources.data if task.images is None else random_subset(sources.data, task.images)
    start = _start(context, task.start)
    fingerprint = start and start.fingerprint()  # before it trains on
    outcome = train(task.run, data, out, val_data=sources.choosing, start_from=start, device=context.device)
    training = _training_part(outcome, out)
    tokenizer = load_tokenizer(out).to(context.device)
    return (
        training
        | {"parameters": tokenizer.parameter_counts(), "fingerprint": tokenizer.fingerprint()}
        | {"start": task.start and {"id": context.planned.id_of(task.start), "fingerprint": fingerprint}}
        | _reconstruction_part(context, tokenizer, task, id)
    )


def _start(context: Context, task: AutoencoderTask | None) -> Tokenizer | None:
    """Load the autoencoder that a tokenizer starts from, whose row is finished; its weights must be the
    recorded ones."""
    if task is None:
        return None
    results, id = context.planned.results, context.planned.id_of(task)
    record = results.record(id) or {}
    if "failed" in record:
        raise DivergedError(f"its autoencoder failed: {record['failed']}")
    start = load_tokenizer(results.run(id))
    if start.fingerprint() != record["fingerprint"]:
        raise ResultsError(
            f"{results.run(id)} does not hold the weights of its record: remove it and {id}.json, and run "
            "the same command again."
        )
    return start


def _without_inception(device: torch.device) -> MetricNetworks:
    networks = MetricNetworks.available(device)
    return replace(networks, inception=None, absent=_NO_INCEPTION | networks.absent)


def _training_part(outcome: Outcome, run: Path) -> dict[str, Any]:
    if outcome.reason == "interrupted":
        raise Stopped
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
    image_size, sources, results = task.run.image_size, context.planned.sources, context.planned.results
    measuring = context.planned.scale.measuring
    images = sources.choosing if task.searching else sources.reported
    data = random_subset(images, measuring.images)
    geometry_data = random_subset(images, measuring.geometry_images)
    device = context.device
    networks = _without_inception(device) if task.searching else MetricNetworks.available(device)
    options: dict[str, Any] = {"image_size": image_size, "on_progress": context.check_stop}
    _log.info("evaluating %s on %s images", id, f"{len(data):,}")
    evaluation = evaluate_tokenizer(tokenizer, data, networks, resamples=_RESAMPLES, **options)
    study = study_codebook(tokenizer, geometry_data, **options)
    if rank() == 0:
        settings = LoaderSettings(image_size=image_size, batch_size=_SHOWN_IMAGES)
        shown = next(ImageLoader(sources.shown, settings).one_pass(_SHOWN_IMAGES)).images
        decoded = tokenizer.decode(tokenizer.encode(shown.to(context.device)))
        pictures = {"reconstructions": strip_png(decoded)} | draw_extremes(
            evaluation.scores, tokenizer, data, image_size
        )
        results.write_pictures(id, pictures | draw_study(study, method="pca"))
        if not results.originals.exists():
            write_file(results.originals, strip_png(shown))
    # The use of codes from as many images as there are; a study has one stage of several.
    usage = study.usage.summary() if tokenizer.stages == 1 else {}
    return (
        {"data": repr(data), "image_size": image_size}
        | evaluation.record()
        | {"metrics": evaluation.metrics | usage}
        | {"geometry": study.metrics, "geometry_images": study.images}
        | {"use_images": study.images if usage else evaluation.images}
        | {"absent": study.absent | evaluation.absent}
    )


def _gaussian_record(context: Context, task: GaussianTask) -> dict[str, Any]:
    own = task.training

    def draw(count: int, random: torch.Generator) -> Float[Tensor, "n c"]:
        return task.mean + torch.randn(count, own.dim, generator=random)

    random = torch.Generator().manual_seed(task.seed)
    trained = train_alone(
        own, lambda: draw(own.vectors, random), seed=task.seed, check_stop=context.check_stop
    )
    unseen = torch.Generator().manual_seed(_UNSEEN_SEED + task.seed)
    batches = (draw(own.codebook_size, unseen) for _ in range(TEST_VECTORS_PER_CODE))
    metrics = measure_alone(trained.quantizer, batches)
    return {"config": task.settings(), "steps": own.steps, "metrics": metrics, "curve": trained.curve}


def _latents_record(context: Context, task: LatentsTask) -> dict[str, Any]:
    sources, measuring = context.planned.sources, context.planned.scale.measuring
    own, run, autoencoder = task.training, task.start.run, _start(context, task.start)
    assert autoencoder is not None
    latents, random = _cached_latents(context, task, autoencoder), torch.Generator().manual_seed(task.seed)
    trained = train_alone(
        own, lambda: random_rows(latents, own.vectors, random), seed=task.seed, check_stop=context.check_stop
    )
    geometry_data = random_subset(sources.reported, measuring.geometry_images)
    metrics = measure_alone(trained.quantizer, _latents_of(autoencoder, geometry_data, run.image_size))
    # The same weights around the trained quantizer.
    tokenizer = Tokenizer(
        run.backbone,
        own.quantizer,
        own.codebook_size,
        quantizer_options={"seed": task.seed} | own.quantizer_options,
    )
    for part in ("encoder", "decoder"):
        getattr(tokenizer, part).load_state_dict(getattr(autoencoder, part).state_dict())
    tokenizer.quantizer.load_state_dict(trained.quantizer.state_dict())
    data = random_subset(sources.reported, measuring.images)
    networks, size = _without_inception(context.device), run.image_size
    evaluation = evaluate_tokenizer(
        tokenizer, data, networks, image_size=size, on_progress=context.check_stop
    )
    return evaluation.record() | {
        "config": task.settings(),
        "steps": own.steps,
        "start": {"id": context.planned.id_of(task.start), "fingerprint": autoencoder.fingerprint()},
        "metrics": evaluation.metrics | metrics,
        "geometry_images": len(geometry_data),
        "curve": trained.curve,
    }


def _speech_record(context: Context, task: SpeechTask) -> dict[str, Any]:
    recordings = context.planned.sources.recordings
    assert recordings is not None
    order = torch.from_numpy(random_order(len(recordings), Stream.SUBSET, 0))
    tenth = max(1, len(order) // _MEASURED_RECORDINGS)
    measured, learned = order[:tenth], order[tenth:]
    clips = recordings.clips.to(context.device)
    tokenizer, curve = train_speech(
        task.training, clips[learned], seed=task.seed, check_stop=context.check_stop
    )
    return {
        "config": task.settings(),
        "steps": task.steps,
        "metrics": measure_speech(tokenizer, clips[measured]),
        "recordings": len(measured),
        "curve": curve,
    }


def _cached_latents(context: Context, task: LatentsTask, autoencoder: Tokenizer) -> Float[Tensor, "n c"]:
    """Return the latents of training images, in bf16; encoded once for all quantizers."""
    file = context.planned.results.latents(f"{context.planned.id_of(task.start)}-{task.images}")
    if not file.is_file():
        data = random_subset(context.planned.sources.data, task.images)
        rows = torch.cat(list(_latents_of(autoencoder, data, task.start.run.image_size)))
        write_file(file, save({"latents": rows.bfloat16()}))
    return load(file.read_bytes())["latents"]


@torch.no_grad()
def _latents_of(
    autoencoder: Tokenizer, data: ImageDataset, image_size: int
) -> Iterator[Float[Tensor, "n c"]]:
    """Yield the latents of the centre crops, a batch at a time."""
    loader = ImageLoader(data, LoaderSettings(image_size=image_size, batch_size=_LATENTS_BATCH))
    with in_eval_mode(autoencoder):
        for batch in loader.one_pass():
            yield autoencoder.encoder(batch.images).movedim(1, -1).flatten(0, 2)


def strip_png(images: Float[Tensor, "b 3 s s"]) -> bytes:
    """Return a PNG of images in a row, without gaps."""
    return to_png(torch.cat(list(images.cpu()), dim=2))


def _generator_record(context: Context, task: GeneratorTask, id: str) -> dict[str, Any]:
    """Train and evaluate a generator; the row of its tokenizer is finished."""
    results, tokenizer_id = context.planned.results, context.planned.id_of(task.tokenizer)
    tokenizer_row, out = results.record(tokenizer_id) or {}, results.run(id)
    if "failed" in tokenizer_row:
        raise DivergedError(f"its tokenizer failed: {tokenizer_row['failed']}")
    tokenizer = load_tokenizer(results.run(tokenizer_id)).to(context.device)
    tokens = _encode_sources(context, task, tokenizer, tokenizer_id)
    outcome = train_generator(
        task.run, tokens[0], out, val_tokens=tokens[1], tokenizer=tokenizer, device=context.device
    )
    training, generator = _training_part(outcome, out), load_generator(out).to(context.device)
    return (
        _generation_part(context, task, generator, tokens)
        | training
        | {"config": training["config"] | {"tokenizer": tokenizer_row["config"]}}
        | {"parameters": {"transformer": sum(p.numel() for p in generator.transformer.parameters())}}
        | {"shown_classes": _show_samples(context, task, generator, id)}
    )


def _encode_sources(
    context: Context, task: GeneratorTask, tokenizer: Tokenizer, tokenizer_id: str
) -> list[Path]:
    """Return the tokens of the training images, and of the two halves of the validation images."""
    sources, results = context.planned.sources, context.planned.results
    encoded = [
        (sources.data, results.tokens(tokenizer_id), task.run.flips),
        (sources.choosing, results.tokens(f"{tokenizer_id}-choosing"), False),
        (sources.reported, results.tokens(f"{tokenizer_id}-reported"), False),
    ]
    image_size = task.tokenizer.run.image_size
    most = context.planned.scale.measuring.encoded_images
    for source, out, flips in encoded:
        data = source if most is None else random_subset(source, most)
        _log.info("encoding %s images for %s", f"{len(data):,}", tokenizer_id)
        encode(tokenizer, data, out, image_size=image_size, flips=flips, on_progress=context.check_stop)
    return [out for _, out, _ in encoded]


def _generation_part(
    context: Context, task: GeneratorTask, generator: MaskGIT, tokens: list[Path]
) -> dict[str, Any]:
    """Measure the likelihood of tokens and, where Inception is available, gFID over sampling seeds."""
    measuring = context.planned.scale.measuring
    data = random_subset(context.planned.sources.reported, measuring.images)
    samples, seeds, sampling = measuring.samples, measuring.sampling_seeds, task.run.sampling
    options: dict[str, Any] = {"tokens": tokens[2], "train_tokens": tokens[0], "workers": 0}
    options["on_progress"] = context.check_stop
    _log.info("sampling %s images with each of %d seeds", f"{samples:,}", len(seeds))
    try:
        record = evaluate(
            generator, data, samples=samples, sampling_seeds=seeds, sampling=sampling, **options
        )
        return record.fields | {"data": repr(data)}
    except WeightsError as error:
        absent = dict.fromkeys(GENERATION_FEATURE_METRICS, str(error))
        return evaluate(generator, **options).fields | {"metrics": {}, "std": {}, "absent": absent}


def _show_samples(context: Context, task: GeneratorTask, generator: MaskGIT, id: str) -> list[str]:
    """Draw images of random classes, unselected: the same classes in the same places for every tokenizer."""
    random = torch.Generator().manual_seed(_SAMPLES_SEED)
    classes = torch.randint(len(generator.classes), (_SHOWN_SAMPLES,), generator=random)
    if rank() == 0:
        images = generator.generate(classes, task.run.sampling, seed=_SAMPLES_SEED)
        context.planned.results.write_pictures(id, {"samples": to_png(image_grid(images.cpu()))})
    return [generator.classes[number] for number in classes.tolist()]


def measure_cost(task: CostTask, device: torch.device) -> list[dict[str, Any]]:
    """Time the implementations of a quantizer, ours first, and the networks around it.

    `load` is the mean number of processes that wanted one of the `cores` in the minute before.
    """
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_LOAD * cores:
        _log.warning(
            "the machine is busy (load %.1f, %d cores): times of %s will be high and uncertain; remove its "
            "record and run the same command when the machine is idle.",
            load,
            cores,
            task.name(),
        )
    settings = QuantizerBenchmark(
        sizes=(task.codebook_size,),
        quantizers=(task.quantizer,),
        vectors=task.tokens,
        dim=task.around.backbone.latent_channels,
        repeats=task.repeats,
        # The number of a GPU under torchrun comes from the process.
        device=str(device) if world_size() == 1 else device.type,
    )
    around = networks_ms(task.around, task.tokens, device, repeats=task.repeats)
    return [
        asdict(row)
        | {"load": load, "cores": cores, "networks_ms": around}
        | {"share_of_step": None if row.ms is None else row.ms / around}
        for row in run_benchmark(settings)
    ]
