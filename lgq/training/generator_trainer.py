"""Training of a generator: MaskGIT (Chang et al. 2022) on the tokens of a frozen tokenizer.

b = images, n = tokens per image, s = side in pixels.

    outcome = train_generator(lgq.run("pocket"), "tokens/", "runs/generator")

Masks and dropped classes come from torch's random numbers. Each rank seeds its own, and checkpoints hold
them, so a run that was stopped ends with the weights of one that was not.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lgq.config import to_json
from lgq.data.token_loader import TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset, TokenMeaning
from lgq.distributed import join_processes, rank, world_size
from lgq.inference.encode import tokenizer_of
from lgq.maskgit import ONE_CLASS, MaskGIT, load_generator
from lgq.metrics.likelihood import classes_of, measure_likelihood
from lgq.models.masking import masked_loss, random_masks
from lgq.random import batch_seed
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.history import History, StartFrom, require_same_network, source_name
from lgq.training.loop import Outcome, run_loop
from lgq.training.run_directory import Resume, has_checkpoints, require_resumable
from lgq.training.settings import GeneratorRun, require_run
from lgq.training.trainer import Trainer

_EMBEDDINGS = {
    "tokens": ("codes",),
    "class_tokens": ("classes",),
    "positions": ("positions",),
    "bias": ("codes", "positions"),
}
"""What parameters of the transformer are about; those of its layers, all others, are about nothing."""

_log = logging.getLogger(__name__)


def train_generator(
    run: GeneratorRun,
    tokens: TokenDataset | str | Path,
    out: str | Path,
    *,
    val_tokens: TokenDataset | str | Path | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    start_from: MaskGIT | str | Path | None = None,
    resume: Resume = "auto",
    device: str | torch.device = "auto",
) -> Outcome:
    """Train a generator into the run directory `out`; the same call continues a run that was stopped.

    A call with more steps extends the run.

    run: the settings, such as `lgq.run("pocket")`.
    tokens: tokens to train on, or their directory.
    val_tokens: tokens to validate on; None takes some of the training tokens.
    tokenizer: the tokenizer that made the tokens, or what `load_tokenizer` loads it from; None takes the
        copy beside the tokens. It stays frozen, and is saved with the generator.
    start_from: a generator whose weights a new run begins with, or what `load_generator` loads it from: its
        layers, and what it knows of the same codes, places and classes. A resumed run does not need it.
    resume: `auto` continues the run in `out`, if there is one; `never` refuses a directory with a run,
        `must` one without.
    device: where to compute, the words of `--device` (`lgq.distributed.resolve_device`).

    Processes that torchrun started share the work: each takes `batch_size` images at a time.
    """
    require_run(run, GeneratorRun)
    require_resumable(Path(out), resume)
    training_tokens, validation_tokens, decoder = open_tokens(tokens, val_tokens, tokenizer)
    validated = validation_tokens or training_tokens
    trainer = GeneratorTrainer(
        run, training_tokens, validated, decoder, Path(out), start_from=start_from, device=device
    )
    warning = "no validation tokens (`val_tokens`): validating on some of the training tokens"
    return run_loop(trainer, resume, warning=warning if val_tokens is None else None)


def open_tokens(
    tokens: TokenDataset | str | Path,
    val_tokens: TokenDataset | str | Path | None,
    tokenizer: Tokenizer | str | Path | None,
) -> tuple[TokenDataset, TokenDataset | None, Tokenizer]:
    """Open what `train_generator` takes; refuses another tokenizer's tokens, and unlike validation tokens."""
    training_tokens = tokens if isinstance(tokens, TokenDataset) else TokenDataset(tokens)
    if tokenizer is None:
        tokenizer = tokenizer_of(training_tokens)
    elif not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    training_tokens.require_fingerprint(tokenizer.fingerprint())
    if isinstance(val_tokens, str | Path):
        val_tokens = TokenDataset(val_tokens)
    if val_tokens is not None:
        TokenMeaning.of(training_tokens).require_of(val_tokens)
    return training_tokens, val_tokens, tokenizer


def build_generator(run: GeneratorRun, tokens: TokenDataset, tokenizer: Tokenizer) -> MaskGIT:
    """Build the generator with the initial weights of the run's seed; reseeds torch."""
    torch.manual_seed(run.seed)
    return MaskGIT(
        tokenizer,
        image_size=tokens.encoding.image_size,
        classes=tokens.classes or ONE_CLASS,
        transformer=run.transformer,
    )


def take_generator(maskgit: MaskGIT, source: MaskGIT | str | Path) -> StartFrom:
    """Give a generator trained weights: the layers, and the embeddings that mean the same in both.

    Those of codes need the same tokenizer, those of positions the same grid, those of classes the same names.
    A transformer of another size is an error.

    source: a generator, or what `load_generator` loads it from.
    """
    trained, name = load_generator(source), source_name(source)
    here, there = maskgit.settings["transformer"], trained.settings["transformer"]
    require_same_network(name, "transformer", here, there, but=("dropout",))
    same = {
        "codes": trained.settings["fingerprint"] == maskgit.settings["fingerprint"],
        "positions": trained.token_shape == maskgit.token_shape,
        "classes": trained.classes == maskgit.classes,
    }
    own = maskgit.transformer.state_dict()
    taken = {
        parameter: weights
        for parameter, weights in trained.transformer.state_dict().items()
        if all(same[about] for about in _EMBEDDINGS.get(parameter.split(".")[0], ()))
    }
    maskgit.transformer.load_state_dict(own | taken)
    parts = ("layers", *(part for part, is_same in same.items() if is_same))
    start = StartFrom(source=name, fingerprint=trained.fingerprint(), parts=parts)
    untrained = " and ".join(part for part, is_same in same.items() if not is_same)
    _log.info(
        "starting from %s%s",
        start,
        f"; {untrained} are others here, and start untrained" if untrained else "",
    )
    return start


class GeneratorTrainer(Trainer):
    """A MaskGIT in training: its transformer learns, its tokenizer stays as it is.

    start_from: a generator whose weights the run begins with, or what `load_generator` loads it from.
    """

    run: GeneratorRun
    best_by = "nll"

    def __init__(
        self,
        run: GeneratorRun,
        tokens: TokenDataset,
        validation_tokens: TokenDataset,
        tokenizer: Tokenizer,
        out: Path,
        *,
        start_from: MaskGIT | str | Path | None = None,
        device: str | torch.device = "auto",
    ):
        device = join_processes(device)
        run = run.for_data(len(tokens), ranks=world_size())
        self.maskgit = build_generator(run, tokens, tokenizer).to(device)
        if start_from is not None:
            resumed = has_checkpoints(out)
            start = StartFrom.named(start_from) if resumed else take_generator(self.maskgit, start_from)
            self.history = History(start_from=start)
        self.transformer = self.maskgit.transformer
        self._sources = {
            "tokenizer": tokenizer.fingerprint(),
            "tokens": _describe(tokens),
            "validation_tokens": _describe(validation_tokens),
        }
        settings = TokenLoaderSettings(
            batch_size=run.batch_size, seed=run.seed, flips=run.flips, rank=rank(), world_size=world_size()
        )
        self._validation_loader = TokenLoader(validation_tokens, settings)
        super().__init__(run, self.transformer, TokenLoader(tokens, settings), out, device)

    def config(self) -> dict[str, Any]:
        model = {"kind": "generator", "image_size": self.maskgit.image_size}
        return model | to_json(self.run) | self._sources

    def default_config(self) -> dict[str, Any]:
        return to_json(GeneratorRun())

    def _accumulate(self, step: int) -> dict[str, Tensor]:
        tokens, classes = self._next_tokens()
        # Drawn on the CPU, so that a seed means the same masks on every device.
        masked = random_masks(torch.rand(len(tokens)), torch.rand(tokens.shape)).to(self.device)
        with self.run.autocast(self.device.type):
            logits = self._forward(tokens.masked_fill(masked, self.transformer.mask_token), classes, masked)
            loss = masked_loss(logits, tokens[masked], smoothing=self.run.label_smoothing)
        self._optimizer.backward(loss / self.run.accumulate)
        return {"loss": loss.detach(), "masked": masked.float().mean()}

    def _next_tokens(self) -> tuple[Int64[Tensor, "b n"], Int64[Tensor, " b"]]:
        """Return tokens and the classes to show with them."""
        batch = self._next_batch()
        null = self.transformer.null_class
        dropped = torch.rand(len(batch.labels)) < self.run.label_dropout
        classes = classes_of(batch.labels, null).masked_fill(dropped, null)
        return batch.tokens.to(self.device), classes.to(self.device)

    def validate(self, step: int) -> dict[str, float]:
        """Measure the likelihood in float32 whatever the precision of training, and sample some images."""
        batches = self._validation_loader.one_pass(self.run.validation_images)
        with self._averaged_weights():
            values = measure_likelihood(self.transformer, batches, self.device)
            if rank() == 0 and self.run.sample_images:
                self.pictures = {"samples": self._save_picture(step, self._samples())}
        return values

    def _samples(self) -> Float[Tensor, "b 3 s s"]:
        """Sample images of classes spread over their range; classes and seeds are the same every time."""
        images, size, sampling = self.run.sample_images, self.run.batch_size, self.run.sampling
        classes = torch.arange(images) * len(self.maskgit.classes) // images
        seeds = [batch_seed(self.run.seed, first) for first in range(0, images, size)]
        batches = zip(classes.split(size), seeds, strict=True)
        return torch.cat([self.maskgit.generate(part, sampling, seed=seed).cpu() for part, seed in batches])

    def save_pretrained(self, directory: Path) -> None:
        with self._averaged_weights():
            self.maskgit.save_pretrained(directory)


def _describe(tokens: TokenDataset) -> dict[str, Any]:
    """Return what config.json says about tokens, by which a run recognises them wherever they lie."""
    content = {"checksum": tokens.checksum, "classes": len(tokens.classes), "flips": tokens.encoding.flips}
    return {"source": repr(tokens), "images": len(tokens)} | content
