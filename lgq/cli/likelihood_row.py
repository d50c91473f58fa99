"""How likely a generator finds real tokens, beside what they cost without it."""

from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from lgq.cli.console import progress_of
from lgq.cli.findings import Column, in_columns, row_table
from lgq.data.token_loader import TokenLoader, TokenLoaderSettings
from lgq.data.tokens import TokenDataset, TokenMeaning, require_same_meaning
from lgq.distributed import rank, world_size
from lgq.maskgit import MaskGIT
from lgq.metrics.likelihood import measure_likelihood, token_entropies
from lgq.training.generator_trainer import ONE_CLASS

_NATS: dict[str, Column] = {
    "nll": ("NLL", "{:.3f}".format),
    "accuracy": ("accuracy", "{:.1%}".format),
    "entropy": ("entropy", "{:.3f}".format),
    "class_entropy": ("entropy, class known", "{:.3f}".format),
    "cross_entropy": ("cross-entropy", "{:.3f}".format),
    "class_cross_entropy": ("cross-entropy, class known", "{:.3f}".format),
}


def open_token_sets(tokens: Path | None, train_tokens: Path | None, generator: MaskGIT) -> list[TokenDataset]:
    """None, or tokens to measure, which come last, after those of the training if they are given."""
    sets = [TokenDataset(path) for path in (train_tokens, tokens) if path is not None]
    for each in sets:
        _meaning_of(generator, labelled=bool(each.classes)).require_of(each)
    if sets:
        require_same_meaning(*sets)
    return sets


def likelihood_of(
    generator: MaskGIT, sets: list[TokenDataset], batch_size: int, device: torch.device, images: int | None
) -> dict[str, Any]:
    """Its part of a results record: of the last of the sets.

    images: how many to hide tokens of, evenly spread; all if None, and entropies are always of all.
    """
    tokens = sets[-1]
    loading = TokenLoaderSettings(batch_size=batch_size, rank=rank(), world_size=world_size())
    batches = TokenLoader(tokens, loading).one_pass(images)
    values = measure_likelihood(generator.transformer, batches, device)
    values["images"] = min(images or len(tokens), len(tokens))
    with progress_of("counting tokens") as report:
        entropies = token_entropies(*sets, on_progress=report)
    return {"data": repr(tokens)} | values | entropies.record()


def likelihood_table(values: dict[str, Any]) -> Table:
    found = {name: value for name, value in values.items() if name in _NATS and value is not None}
    title = f"{values['masked_tokens']:,.0f} hidden tokens, in nats"
    return row_table(in_columns(found, {name: _NATS[name] for name in found}), title=title)


def _meaning_of(generator: MaskGIT, *, labelled: bool) -> TokenMeaning:
    """Of the tokens that it learned from, by all that it knows of them."""
    # It does not tell images without labels from a class of the same name.
    may_lack_labels = generator.classes == ONE_CLASS and not labelled
    height, width = generator.token_shape[:2]
    return TokenMeaning(
        owner="the generator",
        fingerprint=generator.tokenizer.fingerprint(),
        codebook_size=generator.tokenizer.codebook_size,
        stages=generator.tokenizer.stages,
        grid=(height, width),
        image_size=generator.image_size,
        classes=() if may_lack_labels else generator.classes,
    )
