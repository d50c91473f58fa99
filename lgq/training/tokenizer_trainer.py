"""Training of a tokenizer: the recipe of VQ-GAN (Esser et al. 2021), as LGQ (Altun et al. 2026) sets it.

    run = named_run("pocket-lgq")
    outcome = train_tokenizer(run, open_dataset("photos/"), None, "runs/photos")

Runs of one seed that differ in the quantizer alone begin with the same encoder and decoder, and see
the same crops in the same order.
"""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from jaxtyping import Float, Int64
from torch import Tensor

from lgq.config import to_json
from lgq.data import Batch, ImageDataset, ImageLoader, LoaderSettings, StreamBatch, StreamLoader
from lgq.data.loader import evenly_spread
from lgq.data.stream import require_random_access
from lgq.data.stream_loader import training_loader
from lgq.distributed import rank, stack_over_ranks, world_size
from lgq.metrics.features import FeatureSet
from lgq.quantizers import Quantized
from lgq.tokenizer import Tokenized, Tokenizer
from lgq.training.checkpoint import seed_random_state
from lgq.training.ema import WeightAverage
from lgq.training.loop import run_loop
from lgq.training.losses import Objective
from lgq.training.networks import build_judges, build_networks, require_possible
from lgq.training.run_directory import Resume
from lgq.training.settings import Outcome, Precision, TokenizerRun
from lgq.training.trainer import (
    Learner,
    NonFiniteError,
    averaged,
    describe_data,
    mean_terms,
    prepare_accelerator,
    save_picture,
)
from lgq.training.validation import grid_png, measure

__all__ = ["Precision", "TokenizerRun", "TokenizerTraining", "grid_png", "train_tokenizer"]

_log = logging.getLogger(__name__)


def train_tokenizer(
    run: TokenizerRun,
    data: ImageDataset,
    validation_data: ImageDataset | None,
    out: str | Path,
    resume: Resume = "auto",
) -> Outcome:
    """Train into the run directory `out`; the same call continues a run that was stopped or killed.

    Without `validation_data`, the middle of the training images serves for validation. Several
    processes, as torchrun starts them, share the work: each takes `batch_size` images at a time. `data`
    may be a stream (`lgq.data.stream`); `validation_data` may not.
    """
    require_possible(run)
    validated = data if validation_data is None else validation_data
    require_random_access(validated, "validation (--val-data)")
    accelerator = prepare_accelerator()
    if validation_data is None and rank() == 0:
        _log.warning("no validation data: validating on the middle of the training images")
    trainee = TokenizerTraining(run, data, validated, Path(out), accelerator)
    return run_loop(trainee, trainee.run.loop, out, resume)


class TokenizerTraining:
    """A `Trainee`: the models of a run, their optimizers, and where they are in the data."""

    higher_is_better = False  # each score is a distance

    def __init__(
        self,
        run: TokenizerRun,
        data: ImageDataset,
        validation_data: ImageDataset,
        out: Path,
        accelerator: Accelerator,
    ):
        if run.loop.epochs is not None:
            run = run.for_data(len(data), ranks=world_size())
        self.run = run
        self.out, self.device = out, accelerator.device
        self.items_per_step = run.batch_size * run.accumulate * world_size()
        self._accelerator = accelerator
        self._layout = torch.channels_last if run.channels_last else torch.contiguous_format
        self.tokenizer, self.discriminator, perceptual = build_networks(run, self.device, self._layout)
        self._parallel = accelerator.prepare_model(self.tokenizer)
        self._forward = torch.compile(self._parallel) if run.compile else self._parallel
        self._learner = Learner(self.tokenizer, run, self.device)
        self._critic = Learner(self.discriminator, run, self.device) if self.discriminator else None
        self._average = WeightAverage(self.tokenizer, run.average_decay) if run.average_decay else None
        last_layer = self.tokenizer.decoder.to_image.weight
        self._objective = Objective(
            run.loss, perceptual=perceptual, discriminator=self.discriminator, last_layer=last_layer
        )
        validated = min(run.validation_images, len(validation_data))
        self.score, self._judges = build_judges(run, perceptual, self.device, images=validated)
        self._loader = training_loader(data, self._loading())
        self._validation_loader = ImageLoader(validation_data, self._loading())
        self._inspected = _inspected(run, len(validation_data))
        self._originals: FeatureSet | None = None
        self._position: Any = 0  # of the loader, which knows what it means
        self._names = list[str]()
        self._batches: Iterator[Batch | StreamBatch] | None = None
        # What training itself draws differs between ranks, and does not depend on the models' start.
        seed_random_state(run.rank_seed(rank(), world_size()))

    def config(self) -> dict[str, Any]:
        options = {"quantizer_options": self.tokenizer.settings["quantizer_options"], "best_by": self.score}
        sources = {"data": _described(self._loader), "validation_data": _described(self._validation_loader)}
        return to_json(self.run) | options | sources

    def train_step(self, step: int) -> dict[str, Tensor]:
        steps = self.run.loop.steps
        rate = self.run.rate(step)
        self.tokenizer.anneal(step / max(1, steps - 1))
        self.tokenizer.train()
        self._names.clear()
        batches = range(1, self.run.accumulate + 1)
        terms = mean_terms([self._backward(step, last=i == self.run.accumulate) for i in batches])
        terms["gradient"] = self._learner.step(rate)
        if self._critic is not None and self._objective.adversarial(step):
            self._critic.average_gradients()
            terms["discriminator_gradient"] = self._critic.step(rate)
        if self._average is not None:
            self._average.update(self.tokenizer)
        return terms | {"learning_rate": torch.tensor(rate)} | _temperature(self.tokenizer)

    def _backward(self, step: int, *, last: bool) -> dict[str, Tensor]:
        """Add the gradients of one batch; ranks exchange them with the last one of a step."""
        images = self._next_images()
        with nullcontext() if last else self._accelerator.no_sync(self._parallel):
            with self.run.autocast(self.device.type):
                reconstruction, quantized = self._reconstruct(images)
                loss = self._objective.tokenizer_loss(images, reconstruction, quantized.loss, step=step)
            self._learner.backward(loss.total / self.run.accumulate)
        terms = _quantizer_terms(quantized) | loss.terms | {"loss": loss.total.detach()}
        if self._critic is not None and self._objective.adversarial(step):
            with self.run.autocast(self.device.type):
                verdict = self._objective.discriminator_loss(images, reconstruction)
            self._critic.backward(verdict.total / self.run.accumulate)
            terms |= verdict.terms
        return terms

    def _next_images(self) -> Float[Tensor, "b 3 s s"]:
        if self._batches is None:
            self._batches = self._loader.stream(self._position)
        batch = next(self._batches)
        self._position = _of_all_ranks(batch)
        self._names += batch.names
        return self._placed(batch.images)

    def _reconstruct(self, images: Float[Tensor, "b 3 s s"]) -> Tokenized:
        try:
            result: Tokenized = self._forward(images)
        except ValueError as error:
            # Quantizers refuse latents that are no numbers, before there is a loss to look at.
            with torch.no_grad():
                if torch.isfinite(self.tokenizer.encoder(images)).all():
                    raise
            raise NonFiniteError("the encoder's output") from error
        return result

    def validate(self, step: int) -> dict[str, float]:
        """In float32 whatever the training's precision, as users of the weights will run them."""
        limit = self.run.validation_images
        # Where the share of one process is broken, the others have images, and wait for its counts.
        batches = self._validation_loader.one_pass(limit, may_be_empty=world_size() > 1)
        numbered = ((self._placed(batch.images), batch.indices) for batch in batches)
        self.tokenizer.eval()
        with averaged(self.tokenizer, self._average):
            values, grid, self._originals = measure(
                self.tokenizer,
                numbered,
                self._judges,
                images=limit,
                known=self._originals,
                inspected=self._inspected,
            )
        if rank() == 0 and grid is not None:
            save_picture(self.out, step, grid)
        return values

    def save_pretrained(self, directory: Path) -> None:
        with averaged(self.tokenizer, self._average):
            self.tokenizer.save_pretrained(directory)

    def describe_batch(self) -> list[str]:
        return list(self._names)

    def state(self) -> dict[str, Any]:
        return {
            "position": self._position,
            "tokenizer": self.tokenizer.state_dict(),
            "learner": self._learner.state(),
            "discriminator": self.discriminator.state_dict() if self.discriminator else None,
            "critic": self._critic.state() if self._critic else None,
            "average": self._average.state_dict() if self._average else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._position, self._batches = state["position"], None
        self.tokenizer.load_state_dict(state["tokenizer"])
        self._learner.load_state(state["learner"])
        if self.discriminator is not None and self._critic is not None:
            self.discriminator.load_state_dict(state["discriminator"])
            self._critic.load_state(state["critic"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def _loading(self) -> LoaderSettings:
        return LoaderSettings(
            image_size=self.run.image_size,
            batch_size=self.run.batch_size,
            seed=self.run.seed,
            crop=self.run.crop,
            workers=self.run.workers,
            pin_memory=self.device.type == "cuda",
            rank=rank(),
            world_size=world_size(),
        )

    def _placed(self, images: Float[Tensor, "b 3 s s"]) -> Float[Tensor, "b 3 s s"]:
        return images.to(self.device, non_blocking=True).contiguous(memory_format=self._layout)


def _described(loader: ImageLoader | StreamLoader) -> dict[str, Any]:
    return loader.describe() if isinstance(loader, StreamLoader) else describe_data(loader.dataset)


def _of_all_ranks(batch: Batch | StreamBatch) -> Any:
    """Where to go on after a batch, on every rank: checkpoints are written by the first."""
    if isinstance(batch, Batch):
        return batch.position
    return stack_over_ranks(torch.tensor(batch.position)).flatten(0, 1).tolist()


def _inspected(run: TokenizerRun, length: int) -> Int64[Tensor, " n"] | None:
    """Numbers of the validation images that rfid is taken on, the same on every rank; None for all."""
    validated = evenly_spread(length, min(run.validation_images, length))
    if run.rfid_images is None or run.rfid_images >= len(validated):
        return None
    return torch.tensor(validated)[evenly_spread(len(validated), run.rfid_images)]


def _quantizer_terms(quantized: Quantized) -> dict[str, Tensor]:
    return {f"quantizer/{name}": term for name, term in quantized.terms.items()}


def _temperature(tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The present tau, where the quantizer has one; stages share theirs."""
    buffers = (buffer for name, buffer in tokenizer.quantizer.named_buffers() if name.endswith("tau"))
    tau = next(buffers, None)
    return {} if tau is None else {"tau": tau.detach().clone()}
