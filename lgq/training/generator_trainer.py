"""Training of a generator: MaskGIT (Chang et al. 2022) on the tokens of a frozen tokenizer.

b = images, n = tokens of an image, s = side in pixels.

    tokens = TokenDataset("tokens/")
    outcome = train_generator(named_generator("pocket"), tokens, None, tokenizer, "runs/generator")

The mask of an image and whether its class is shown come from torch's own random numbers, which ranks
begin apart and which resume: a run that was stopped ends where it would have ended.
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
from lgq.data import to_png
from lgq.data.token_loader import TokenBatch, TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset, TokenMeaning
from lgq.distributed import rank, world_size
from lgq.maskgit import MaskGIT
from lgq.metrics.likelihood import classes_of, measure_likelihood
from lgq.models.masking import masked_loss, random_masks
from lgq.random import batch_seed
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import seed_random_state
from lgq.training.ema import WeightAverage
from lgq.training.loop import run_loop
from lgq.training.run_directory import Resume
from lgq.training.settings import GeneratorRun, Outcome
from lgq.training.trainer import (
    Learner,
    averaged,
    describe_data,
    mean_terms,
    prepare_accelerator,
    save_picture,
)

ONE_CLASS = ("image",)
"""The classes of images without labels."""

_GRID_COLUMNS = 8

_log = logging.getLogger(__name__)


def train_generator(
    run: GeneratorRun,
    tokens: TokenDataset,
    validation_tokens: TokenDataset | None,
    tokenizer: Tokenizer,
    out: str | Path,
    resume: Resume = "auto",
) -> Outcome:
    """Train into the run directory `out`; the same call continues a run that was stopped or killed.

    tokenizer: the one that made the tokens, any others are refused. It is frozen, and saved with the
        generator.

    Without `validation_tokens`, images from all over the training tokens serve for validation. Several
    processes, as torchrun starts them, share the work: each takes `batch_size` images at a time.
    """
    require_fit(tokens, validation_tokens, tokenizer)
    accelerator = prepare_accelerator()
    if validation_tokens is None and rank() == 0:
        _log.warning("no validation tokens: validating on some of the training tokens")
    trainee = GeneratorTraining(run, tokens, validation_tokens or tokens, tokenizer, Path(out), accelerator)
    return run_loop(trainee, trainee.run.loop, out, resume)


def require_fit(tokens: TokenDataset, validation_tokens: TokenDataset | None, tokenizer: Tokenizer) -> None:
    """Refuse tokens of another tokenizer, and validation on another kind of images."""
    tokens.require_fingerprint(tokenizer.fingerprint())
    if validation_tokens is not None:
        TokenMeaning.of(tokens).require_of(validation_tokens)


def build_generator(run: GeneratorRun, tokens: TokenDataset, tokenizer: Tokenizer) -> MaskGIT:
    """As the run's seed starts it; leaves torch's own generator anywhere."""
    torch.manual_seed(run.seed)
    return MaskGIT(
        tokenizer,
        image_size=tokens.encoding.image_size,
        classes=tokens.classes or ONE_CLASS,
        transformer=run.transformer,
    )


class GeneratorTraining:
    """A `Trainee`: a generator, the optimizer of its transformer, and where it is in the tokens."""

    score = "nll"
    higher_is_better = False

    def __init__(
        self,
        run: GeneratorRun,
        tokens: TokenDataset,
        validation_tokens: TokenDataset,
        tokenizer: Tokenizer,
        out: Path,
        accelerator: Accelerator,
    ):
        self.run = run = run.for_data(len(tokens), ranks=world_size())
        self.out, self.device = out, accelerator.device
        self.items_per_step = run.batch_size * run.accumulate * world_size()
        self._accelerator = accelerator
        self.maskgit = build_generator(run, tokens, tokenizer).to(self.device)
        self.transformer = self.maskgit.transformer
        self._parallel = accelerator.prepare_model(self.transformer)
        self._forward = torch.compile(self._parallel) if run.compile else self._parallel
        self._learner = Learner(self.transformer, run, self.device)
        self._average = WeightAverage(self.transformer, run.average_decay) if run.average_decay else None
        self._loader = TokenLoader(tokens, self._loading())
        self._validation_loader = TokenLoader(validation_tokens, self._loading())
        self._fingerprint = tokenizer.fingerprint()
        self._position, self._names = 0, list[str]()
        self._batches: Iterator[TokenBatch] | None = None
        # What training itself draws differs between ranks, and does not depend on the model's start.
        seed_random_state(run.rank_seed(rank(), world_size()))

    def config(self) -> dict[str, Any]:
        loaders = {"tokens": self._loader, "validation_tokens": self._validation_loader}
        sources = {name: describe_tokens(loader.dataset) for name, loader in loaders.items()}
        model = {"image_size": self.maskgit.image_size, "tokenizer": self._fingerprint}
        return {"kind": "generator"} | to_json(self.run) | model | sources

    def train_step(self, step: int) -> dict[str, Tensor]:
        rate = self.run.rate(step)
        self.transformer.train()
        self._names.clear()
        batches = range(1, self.run.accumulate + 1)
        terms = mean_terms([self._backward(last=i == self.run.accumulate) for i in batches])
        terms["gradient"] = self._learner.step(rate)
        if self._average is not None:
            self._average.update(self.transformer)
        return terms | {"learning_rate": torch.tensor(rate)}

    def _backward(self, *, last: bool) -> dict[str, Tensor]:
        """Add the gradients of one batch; ranks exchange them with the last one of a step."""
        tokens, classes = self._next_batch()
        # Drawn on the CPU, where dropout draws too if the network is there: other devices, other masks.
        hidden = random_masks(torch.rand(len(tokens)), torch.rand(tokens.shape)).to(self.device)
        with nullcontext() if last else self._accelerator.no_sync(self._parallel):
            with self.run.autocast(self.device.type):
                logits = self._forward(
                    tokens.masked_fill(hidden, self.transformer.mask_token), classes, hidden
                )
                loss = masked_loss(logits, tokens[hidden], smoothing=self.run.label_smoothing)
            self._learner.backward(loss / self.run.accumulate)
        return {"loss": loss.detach(), "masked": hidden.float().mean()}

    def _next_batch(self) -> tuple[Int64[Tensor, "b n"], Int64[Tensor, " b"]]:
        """Tokens, and the classes that are shown with them."""
        if self._batches is None:
            self._batches = self._loader.stream(self._position)
        batch = next(self._batches)
        self._position = batch.position
        self._names += batch.names
        null = self.transformer.null_class
        dropped = torch.rand(len(batch.labels)) < self.run.label_dropout
        classes = classes_of(batch.labels, null).masked_fill(dropped, null)
        return batch.tokens.to(self.device), classes.to(self.device)

    def validate(self, step: int) -> dict[str, float]:
        """In float32 whatever the training's precision, as users of the weights will run them."""
        batches = self._validation_loader.one_pass(self.run.validation_images)
        with averaged(self.transformer, self._average):
            values = measure_likelihood(self.transformer, batches, self.device)
            if rank() == 0 and self.run.sample_images:
                save_picture(self.out, step, to_png(grid_of(self._samples())))
        return values

    def _samples(self) -> Float[Tensor, "b 3 s s"]:
        """Images of classes from all over their range, the same at every validation but for the weights."""
        images, size, sampling = self.run.sample_images, self.run.batch_size, self.run.sampling
        classes = torch.arange(images) * len(self.maskgit.classes) // images
        seeds = [batch_seed(self.run.seed, first) for first in range(0, images, size)]
        batches = zip(classes.split(size), seeds, strict=True)
        return torch.cat([self.maskgit.generate(part, sampling, seed=seed).cpu() for part, seed in batches])

    def save_pretrained(self, directory: Path) -> None:
        with averaged(self.transformer, self._average):
            self.maskgit.save_pretrained(directory)

    def describe_batch(self) -> list[str]:
        return list(self._names)

    def state(self) -> dict[str, Any]:
        return {
            "position": self._position,
            "transformer": self.transformer.state_dict(),
            "learner": self._learner.state(),
            "average": self._average.state_dict() if self._average else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._position, self._batches = state["position"], None
        self.transformer.load_state_dict(state["transformer"])
        self._learner.load_state(state["learner"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def _loading(self) -> TokenLoaderSettings:
        return TokenLoaderSettings(
            batch_size=self.run.batch_size,
            seed=self.run.seed,
            flips=self.run.flips,
            rank=rank(),
            world_size=world_size(),
        )


def describe_tokens(tokens: TokenDataset) -> dict[str, Any]:
    """What config.json says of tokens, by which a run knows them again wherever they lie."""
    content = {"checksum": tokens.checksum, "classes": len(tokens.classes), "flips": tokens.encoding.flips}
    return describe_data(tokens) | content


def grid_of(images: Float[Tensor, "b 3 s s"]) -> Float[Tensor, "3 height width"]:
    """Images row by row, up to eight in a row; places that are left are black."""
    columns = min(_GRID_COLUMNS, len(images))
    missing = -len(images) % columns
    blanks = images.new_full((missing, *images.shape[1:]), -1.0)
    rows = torch.cat([images, blanks]).split(columns)
    return torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)
