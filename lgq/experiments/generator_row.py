"""A generator's row: encode the images with its tokenizer, train a MaskGIT, draw images and judge them."""

import logging
from dataclasses import asdict
from typing import Any

import torch

from lgq.data import ImageDataset, to_png
from lgq.data.token_loader import TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset
from lgq.distributed import rank, world_size
from lgq.experiments.tasks import GeneratorTask
from lgq.experiments.tokenizer_row import training_part
from lgq.experiments.workplace import Stopped, Workplace
from lgq.inference.encode import encode
from lgq.maskgit import MaskGIT, load_generator
from lgq.metrics.generation import evaluate_generation
from lgq.metrics.likelihood import measure_likelihood, token_entropies
from lgq.metrics.metric_networks import NEED_FEATURES
from lgq.metrics.reference import reference_of_images
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.generator_trainer import grid_of, train_generator
from lgq.training.loop import DivergedError

_SHOWN = 16
_SHOWN_SEED = 0

_log = logging.getLogger(__name__)


def generator_record(work: Workplace, task: GeneratorTask, id: str, tokenizer_id: str) -> dict[str, Any]:
    """The record of a trained and evaluated generator, whose tokenizer's row is finished."""
    origin, before = work.origin(task, id), work.results.record(tokenizer_id) or {}
    origin |= {"tokenizer": tokenizer_id, "config": {"tokenizer": before["config"]}, "metrics": {}}
    if "failed" in before:
        return origin | {"failed": f"its tokenizer failed: {before['failed']}"}
    tokenizer = load_tokenizer(work.results.run(tokenizer_id)).to(work.device)
    sets = _tokens(work, task, tokenizer, tokenizer_id)
    out = work.results.run(id)
    try:
        outcome = train_generator(task.run, sets[0], sets[-1], tokenizer, out)
    except DivergedError as error:
        _log.warning("%s failed: %s", id, error)
        return origin | {"failed": str(error)}
    if outcome.reason == "interrupted":
        raise Stopped
    generator, trained = load_generator(out).to(work.device), training_part(work, id, outcome)
    return (
        origin
        | trained
        | {"config": trained["config"] | origin["config"], "fingerprint": tokenizer.fingerprint()}
        | {"parameters": {"transformer": sum(p.numel() for p in generator.transformer.parameters())}}
        | {"image_size": generator.image_size, "likelihood": _likelihood(work, generator, sets)}
        | _drawn(work, task, generator)
        | {"shown_classes": _shown(work, task, generator, id)}
    )


def _tokens(
    work: Workplace, task: GeneratorTask, tokenizer: Tokenizer, tokenizer_id: str
) -> list[TokenDataset]:
    """To train on, and to validate on; one set where the images are the same."""
    size, sources, results = task.tokenizer.run.image_size, work.sources, work.results

    def encode_logged(data: ImageDataset, out: Any, flips: bool) -> TokenDataset:
        _log.info("encoding %s images for %s", f"{len(data):,}", tokenizer_id)
        return encode(tokenizer, data, out, image_size=size, flips=flips, on_progress=work.go_on)

    sets = [encode_logged(sources.data, results.tokens(tokenizer_id), task.run.flips)]
    if sources.validation is not sources.data:
        sets.append(encode_logged(sources.validation, results.validation_tokens(tokenizer_id), False))
    return sets


def _likelihood(work: Workplace, generator: MaskGIT, sets: list[TokenDataset]) -> dict[str, Any]:
    loading = TokenLoaderSettings(batch_size=32, rank=rank(), world_size=world_size())
    batches = TokenLoader(sets[-1], loading).one_pass()
    values = measure_likelihood(generator.transformer, batches, work.device)
    return values | token_entropies(*sets).record()


def _drawn(work: Workplace, task: GeneratorTask, generator: MaskGIT) -> dict[str, Any]:
    """gFID and its kin over sampling seeds; absent without Inception."""
    judges, measuring = work.judges_of_generation, work.scale.measuring
    common = {"data": repr(work.evaluated), "sampling": asdict(task.run.sampling)}
    if judges.inception is None:
        names = {name: judges.absent[name] for name in NEED_FEATURES}
        return common | {"metrics": {}, "std": {}, "absent": judges.absent | names, "fid": None}
    _log.info(
        "drawing %s images with each of %d seeds", f"{measuring.samples:,}", len(measuring.sampling_seeds)
    )
    reference = reference_of_images(
        work.evaluated, generator.image_size, judges.inception, work.device, on_progress=work.go_on
    )
    evaluation = evaluate_generation(
        lambda classes, seed: generator.generate(classes, task.run.sampling, seed=seed),
        len(generator.classes),
        reference,
        judges,
        samples=measuring.samples,
        seeds=measuring.sampling_seeds,
        device=work.device,
        on_progress=work.go_on,
    )
    return common | evaluation.record()


def _shown(work: Workplace, task: GeneratorTask, generator: MaskGIT, id: str) -> list[str]:
    """Images of random classes, none left out: the same classes in the same places for every tokenizer."""
    random = torch.Generator().manual_seed(_SHOWN_SEED)
    classes = torch.randint(len(generator.classes), (_SHOWN,), generator=random)
    if rank() == 0:
        images = generator.generate(classes, task.run.sampling, seed=_SHOWN_SEED)
        work.results.write_pictures(id, {"samples": to_png(grid_of(images.cpu()))})
    return [generator.classes[number] for number in classes.tolist()]
