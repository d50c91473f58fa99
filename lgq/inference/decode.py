"""Tokens on disk back to images, as `lgq decode` makes them.

    decode("runs/photos", "tokens", "decoded")
    decode(None, "tokens", "decoded")                    # with the copy of the tokenizer inside of tokens

Under torchrun, each process decodes a share.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import torch

from lgq.checks import require_at_least
from lgq.data.images import SUFFIXES
from lgq.data.token_format import TokenError
from lgq.data.tokens import TokenDataset
from lgq.data.transforms import to_png
from lgq.distributed import join_processes, rank, wait_for_all, world_size
from lgq.errors import LGQError
from lgq.files import WeightsChoice, write_file
from lgq.inference import Device, TokenizerSource, tokenizer_on_device
from lgq.inference.encode import tokenizer_of
from lgq.progress import Progress, unwatched

_DECODED_FROM = "decoded-from.json"
"""File that names the tokens behind the images of a directory."""


def decode(
    tokenizer: TokenizerSource | None,
    tokens: TokenDataset | str | Path,
    out: str | Path,
    *,
    batch_size: int = 32,
    weights: WeightsChoice = "best",
    device: Device = "auto",
    on_progress: Progress = unwatched,
) -> int:
    """Write the image of each item of a token directory as a PNG; return the number of images.

    tokenizer: the one that made the tokens; None takes the copy that `encode` wrote beside them.

    Files have the names of the encoded images, with their folders, and with a number where two would
    share a name. The same call continues an interrupted one. Tokens of another tokenizer are an error, and
    so is an `out` that holds anything else.
    """
    require_at_least(1, batch_size=batch_size)
    require_no_picture(Path(out))
    dataset = tokens if isinstance(tokens, TokenDataset) else TokenDataset(tokens)
    if tokenizer is None:
        tokenizer = tokenizer_of(dataset).to(join_processes(device))
    else:
        tokenizer = tokenizer_on_device(tokenizer, weights, device)
        dataset.require_fingerprint(tokenizer.fingerprint())
    # All names first: damage and bad names are found before anything is written.
    stems = (_stem_inside(dataset[i].name, dataset) for i in range(len(dataset)))
    files = [Path(out, name) for name in distinct_files(stems)]
    if rank() == 0:
        _claim(Path(out), dataset)
    wait_for_all()
    mine = range(rank(), len(files), world_size())
    missing = [i for i in mine if not files[i].exists()]
    done = len(mine) - len(missing)
    for first in range(0, len(missing), batch_size):
        batch = missing[first : first + batch_size]
        images = tokenizer.decode(torch.stack([dataset[i].tokens for i in batch]).to(tokenizer.device))
        for i, image in zip(batch, images, strict=True):
            write_file(files[i], to_png(image))
        done += len(batch)
        on_progress(done, len(mine))
    wait_for_all()
    return len(dataset)


def require_no_picture(out: Path) -> None:
    """Refuse the name of a picture for a directory of pictures."""
    if out.suffix.lower() in SUFFIXES:
        raise LGQError(f"`out` must be a directory, which gets a picture per image, got {out}.")


def distinct_files(stems: Iterable[str]) -> Iterator[str]:
    """Yield a PNG file name for each stem, with its number where an earlier stem has that name."""
    taken: set[str] = set()
    for number, stem in enumerate(stems):
        while stem in taken:
            stem = f"{stem}-{number}"
        taken.add(stem)
        yield f"{stem}.png"


def _stem_inside(name: str, dataset: TokenDataset) -> str:
    # Token files may come from anywhere, and must not write anywhere.
    path = PurePosixPath(name)
    try:
        fits = path.name not in ("", "..") and not path.is_absolute() and ".." not in path.parts
        fits = fits and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise TokenError(f"{dataset.path} names an image {name!r}, which is no file inside a folder.")
    return str(path.with_suffix(""))


def _claim(out: Path, dataset: TokenDataset) -> None:
    """Record which tokens are decoded into a directory, so that only the same call continues."""
    note = out / _DECODED_FROM
    origin = json.dumps({"tokens": dataset.checksum}).encode()
    if not note.exists():
        # A killed process may have left a part of the note itself.
        if out.is_dir() and any(not path.name.startswith(_DECODED_FROM) for path in out.iterdir()):
            raise TokenError(f"{out} is not empty: choose a new directory for the decoded images.")
        write_file(note, origin)
    elif note.read_bytes() != origin:
        raise TokenError(f"{out} holds images of other tokens than {dataset.path}: choose another directory.")
