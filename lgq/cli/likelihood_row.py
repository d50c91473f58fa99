"""How likely a generator finds real tokens, beside what they cost without it."""

from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from lgq.cli.console import progress_of
from lgq.cli.findings import Column, in_columns, row_table
from lgq.data.token_format import TokenError
from lgq.data.token_loader import TokenLoader, TokenLoading
from lgq.data.tokens import TokenDataset
from lgq.distributed import rank, world_size
from lgq.evaluation.likelihood import measure_likelihood
from lgq.evaluation.token_entropy import token_entropies
from lgq.generator import MaskGIT
from lgq.training.generator import ONE_CLASS

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
        _require_known(each, generator)
    return sets


def likelihood_of(
    generator: MaskGIT, sets: list[TokenDataset], batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Its part of a results record: of the last of the sets."""
    tokens = sets[-1]
    loading = TokenLoading(batch_size=batch_size, rank=rank(), world_size=world_size())
    values = measure_likelihood(generator.transformer, TokenLoader(tokens, loading).one_pass(), device)
    with progress_of("counting tokens") as report:
        entropies = token_entropies(*sets, on_progress=report)
    return {"data": repr(tokens)} | values | entropies.record()


def likelihood_table(values: dict[str, Any]) -> Table:
    found = {name: value for name, value in values.items() if name in _NATS and value is not None}
    title = f"{values['masked_tokens']:,.0f} hidden tokens, in nats"
    return row_table(in_columns(found, {name: _NATS[name] for name in found}), title=title)


def _require_known(tokens: TokenDataset, generator: MaskGIT) -> None:
    """Refuse tokens that mean nothing to the generator; the last of its classes may be missing."""
    tokens.require_fingerprint(generator.tokenizer.fingerprint())
    if tokens.encoding.token_shape != generator.token_shape:
        found, drawn = (" x ".join(map(str, of.token_shape)) for of in (tokens.encoding, generator))
        raise TokenError(
            f"{tokens.path} holds {found} tokens an image, and the generator draws {drawn}: "
            f"encode with --image-size {generator.image_size}."
        )
    for number, name in enumerate(tokens.classes or ONE_CLASS):
        known = generator.classes[number] if number < len(generator.classes) else None
        if name != known:
            raise TokenError(
                f"class {number} of {tokens.path} is {name!r}, and that of the generator is {known!r}: "
                "encode images of the same classes, in the same order."
            )
