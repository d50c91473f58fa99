"""Speed of a tokenizer's training step beside the plain model, and the share of each of its parts.

Three variants train in turns, some steps at a time, in one process:

    plain         the same model in its simplest form: float32, channels first, dense quantizer
    cached        the run with its own settings, on one batch that is loaded already
    with data     the run with its own settings, reading and decoding its images
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.bench.measure import interleaved_ms, milliseconds, now
from lgq.checks import require_at_least
from lgq.data import open_dataset
from lgq.models.autoencoder import Decoder, Encoder
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer
from lgq.training.settings import Precision, TokenizerRun
from lgq.training.tokenizer_trainer import TokenizerTrainer

Step = Callable[[int], object]
PARTS = ("data", "encoder", "quantizer", "decoder", "losses", "optimizer")
"""Parts of a training step; a discriminator's own step counts as `optimizer`."""
_WARM_UP = 8
"""Untimed steps: more batches than the loader keeps ready, which it decoded while others trained."""


@dataclass(frozen=True, kw_only=True)
class TrainBenchmark:
    """What to measure."""

    name: str = "pocket-lgq"
    """Named run."""
    data: str = "sample"
    """Images: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    batch_size: int | None = None
    """Images per step; None keeps the run's."""
    precision: Precision | None = None
    """Precision of the run; None keeps its own."""
    steps: int = 10
    """Steps per turn."""
    rounds: int = 5
    """Turns of each variant, of which the median counts."""
    device: str = "auto"
    """Where to measure: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:N or mps."""


@dataclass(frozen=True, kw_only=True)
class TrainRow:
    variant: str
    images_per_second: float
    over_plain: float
    """Rate over that of the plain model, median over the rounds."""
    over_cached: float
    """Rate over that of the variant `cached`, median over the rounds."""
    shares: dict[str, float] | None
    """Share of each part in a step, forward and backward; None for the plain model."""


def plan(settings: TrainBenchmark) -> tuple[str, ...]:
    return ("plain", "cached", "with data")


def run(settings: TrainBenchmark) -> Iterator[TrainRow]:
    require_at_least(1, steps=settings.steps, rounds=settings.rounds)
    run, data = named_run(settings.name), open_dataset(settings.data)
    # The plain model has neither LPIPS nor a GAN.
    run = replace(run, loss=replace(run.loss, lpips=0.0, gan=0.0))
    changes: dict[str, Any] = {"batch_size": settings.batch_size, "precision": settings.precision}
    run = replace(run, **{name: value for name, value in changes.items() if value is not None})
    with tempfile.TemporaryDirectory() as out:
        cached = OnOneBatch(run, data, data, Path(out), device=settings.device)
        trainers = {
            "cached": cached,
            "with data": TokenizerTrainer(run, data, data, Path(out), device=settings.device),
        }
        steps: dict[str, Step] = {"plain": plain_step(run, cached._next_images())}
        steps |= {name: trainer.train_step for name, trainer in trainers.items()}
        images = run.batch_size * run.accumulate * settings.steps
        rates = {name: list[float]() for name in steps}
        for _ in range(settings.rounds):
            for name, step in steps.items():
                _train(step, _WARM_UP if name == "with data" else 1)
                turn = milliseconds(partial(_train, step, settings.steps), cached.device)
                rates[name].append(images / turn * 1e3)
        for name in plan(settings):
            trainer = trainers.get(name)
            if trainer:
                _train(trainer.train_step, _WARM_UP)
            yield TrainRow(
                variant=name,
                images_per_second=median(rates[name]),
                over_plain=_ratio(rates[name], rates["plain"]),
                over_cached=_ratio(rates[name], rates["cached"]),
                shares=shares_of_parts(trainer, settings.steps) if trainer else None,
            )


class OnOneBatch(TokenizerTrainer):
    """Trains on its first batch again and again."""

    _images: Tensor | None = None

    def _next_images(self) -> Float[Tensor, "b 3 s s"]:
        if self._images is None:
            self._images = super()._next_images()
            self._batches = None  # ends the worker, which would decode for nobody
        return self._images


def plain_step(run: TokenizerRun, images: Float[Tensor, "b 3 s s"]) -> Callable[[int], Tensor]:
    """A step of the plain model: l1 and the quantizer's loss, AdamW."""
    torch.manual_seed(run.seed)
    tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size).to(images.device)
    optimizer = torch.optim.AdamW(tokenizer.parameters(), lr=run.learning_rate)
    images = images.contiguous()

    def step(_: int) -> Tensor:
        latents = tokenizer.encoder(images)
        if tokenizer.quantizer.dense_matrices is None:
            quantized, _indices, loss = tokenizer.quantizer(latents)
        else:
            vectors = latents.movedim(1, -1)
            rows, _indices, loss = tokenizer.quantizer.dense_forward(vectors.flatten(0, 2))
            quantized = rows.view(vectors.shape).movedim(-1, 1).contiguous()
        loss = loss + (tokenizer.decoder(quantized) - images).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _train(step: Step, steps: int) -> None:
    for i in range(steps):
        step(i)


def _ratio(rates: list[float], references: list[float]) -> float:
    return median(rate / reference for rate, reference in zip(rates, references, strict=True))


def shares_of_parts(trainer: TokenizerTrainer, steps: int) -> dict[str, float]:
    """Share of each part, forward and backward, in the time of `steps` training steps."""
    tokenizer, seconds, last = trainer.tokenizer, dict.fromkeys(PARTS, 0.0), 0.0

    def mark(part: str) -> None:
        """Give the time since the last mark to a part."""
        nonlocal last
        time_of_mark = now(trainer.device)
        seconds[part] += time_of_mark - last
        last = time_of_mark

    def after(part: str, next_part: str) -> Any:
        """A hook that ends a part; in the backward pass, it ends the next one, whose work is done then."""

        def hook(_module: object, _inputs: object, output: Any) -> None:
            mark(part)
            result: Tensor = output if isinstance(output, Tensor) else output.quantized
            result.register_hook(lambda _: mark(next_part))

        return hook

    handles = [
        tokenizer.encoder.register_forward_pre_hook(lambda *_: mark("data")),
        tokenizer.encoder.register_forward_hook(after("encoder", "quantizer")),
        tokenizer.quantizer.register_forward_hook(after("quantizer", "decoder")),
        tokenizer.decoder.register_forward_hook(after("decoder", "losses")),
        # The stem is the last layer to get its gradient.
        tokenizer.encoder.stem.weight.register_post_accumulate_grad_hook(lambda _: mark("encoder")),
    ]
    last = now(trainer.device)
    for step in range(steps):
        trainer.train_step(step)
        mark("optimizer")
    for handle in handles:
        handle.remove()
    return {part: seconds[part] / sum(seconds.values()) for part in PARTS}


def networks_ms(run: TokenizerRun, tokens: int, device: torch.device, *, repeats: int) -> float:
    """Best time of a training step of encoder and decoder alone (l1, AdamW), for that many tokens."""
    torch.manual_seed(run.seed)
    encoder, decoder = Encoder(run.backbone).to(device), Decoder(run.backbone).to(device)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=run.learning_rate)
    side = run.image_size // run.backbone.factor
    images = torch.rand(max(1, tokens // side**2), 3, run.image_size, run.image_size, device=device)

    def step() -> None:
        with run.autocast(device.type):
            loss = (decoder(encoder(images)) - images).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return interleaved_ms({"step": step}, repeats=repeats, device=device)["step"]
