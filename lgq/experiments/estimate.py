"""How long will an experiment take? From a few training steps of each kind of run on this machine."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lgq.experiments.plan import SeededRow, Sources
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.tasks import GeneratorTask, Task, TokenizerTask
from lgq.models.masking import masked_loss, random_masks
from lgq.training.networks import require_possible
from lgq.training.tokenizer_trainer import TokenizerTraining
from lgq.training.trainer import Learner, prepare_accelerator
from lgq.weights import WeightsError

_STEPS, _SLOW = 3, 5.0
"""Steps to measure, fewer once one has taken so many seconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one row."""

    row: SeededRow
    finished: bool
    parameters: int
    """Learned ones."""
    seconds: float | None
    """Of training alone; None where nothing is to be trained, or nothing can be measured."""


def estimate_rows(rows: Sequence[SeededRow], sources: Sources, results: ResultsDirectory) -> list[Estimate]:
    """Rows that are finished already take no time. Nothing is written."""
    per_step: dict[str, float | None] = {}
    return [_estimate(row, sources, results, per_step) for row in rows]


def _estimate(
    row: SeededRow, sources: Sources, results: ResultsDirectory, per_step: dict[str, float | None]
) -> Estimate:
    finished, kind, task = results.is_finished(row.id), _kind(row.task), row.task
    if not finished and kind not in per_step:
        per_step[kind] = _seconds_a_step(task, sources)
    each = None if finished else per_step[kind]
    return Estimate(
        row=row,
        finished=finished,
        parameters=sum(task.parameters().values()),
        seconds=None if each is None else each * task.steps,
    )


def _kind(task: Task) -> str:
    """Tasks of one kind take the same time a step."""
    if isinstance(task, TokenizerTask):
        return f"{task.run.quantizer}, {task.run.codebook_size} codes, {task.run.stages} stages"
    if isinstance(task, GeneratorTask):
        return f"generator, {_kind(task.tokenizer)}"
    return task.kind


def _seconds_a_step(task: Task, sources: Sources) -> float | None:
    try:
        if isinstance(task, TokenizerTask):
            return _least_seconds(_tokenizer_step(task, sources), task.steps)
        if isinstance(task, GeneratorTask):
            return _least_seconds(_generator_step(task), task.steps)
    except WeightsError as error:
        _log.warning("no time of %s: %s", _kind(task), error)
    return None


def _least_seconds(step: Callable[[int], object], steps: int) -> float:
    """Of the last step, in which all that joins later takes part."""
    times: list[float] = []
    while len(times) < _STEPS and sum(times) < _SLOW:
        began = time.perf_counter()
        step(steps - 1)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


def _tokenizer_step(task: TokenizerTask, sources: Sources) -> Callable[[int], object]:
    require_possible(task.run)
    # Validations are not measured, so that their judges are not needed.
    run = replace(task.run, best_by="l1", workers=0)
    training = TokenizerTraining(run, sources.data, sources.data, Path(), prepare_accelerator())
    return training.train_step


def _generator_step(task: GeneratorTask) -> Callable[[int], object]:
    """On random tokens: those of the tokenizer are not there yet."""
    run, device = task.run, prepare_accelerator().device
    transformer = task.planned_transformer(device)
    learner = Learner(transformer, run, device)
    codes, length = task.tokenizer.run.codebook_size, transformer.length

    def step(number: int) -> None:
        for _ in range(run.accumulate):
            tokens = torch.randint(codes, (run.batch_size, length), device=device)
            hidden = random_masks(torch.rand(len(tokens)), torch.rand(tokens.shape)).to(device)
            with run.autocast(device.type):
                masked = tokens.masked_fill(hidden, transformer.mask_token)
                logits = transformer(masked, torch.zeros_like(tokens[:, 0]), hidden)
                loss = masked_loss(logits, tokens[hidden], smoothing=run.label_smoothing)
            learner.backward(loss / run.accumulate)
        learner.step(run.rate(number))

    return step
