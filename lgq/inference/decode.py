"""Tokens on disk back to images, as `lgq decode` makes them.

    decode_tokens(tokenizer, "tokens", "pictures")

Decoding goes on where a killed process stopped. Under torchrun, each process takes a share.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import torch

from lgq.data.token_format import TokenError
from lgq.data.token_writer import write_whole
from lgq.data.tokens import TokenDataset
from lgq.data.transforms import to_png
from lgq.distributed import rank, wait_for_all, world_size
from lgq.errors import LGQError
from lgq.progress import Progress, unwatched
from lgq.tokenizer import Tokenizer

_DECODED_FROM = "decoded-from.json"


def decode_tokens(
    tokenizer: Tokenizer,
    tokens: str | Path,
    out: str | Path,
    *,
    batch_size: int = 32,
    on_progress: Progress = unwatched,
) -> int:
    """Write the image of each item of a token directory as a PNG; returns how many images there are.

    Files have the names of the encoded images, with their folders, and with a number where two would
    share a name. An interrupted call is continued by the same call. Tokens of another tokenizer, and
    an `out` that holds anything else, are refused.
    """
    if batch_size < 1:
        raise LGQError(f"batch_size must be 1 or more, got {batch_size}.")
    dataset = TokenDataset(tokens)
    dataset.require_fingerprint(tokenizer.fingerprint())
    # Every name first: damage and bad names are refused before anything is written.
    stems = (_stem_inside(dataset[i].name, dataset) for i in range(len(dataset)))
    files = [Path(out, name) for name in distinct_files(stems)]
    if rank() == 0:
        _claim(Path(out), dataset)
    wait_for_all()
    mine = range(rank(), len(files), world_size())
    missing = [i for i in mine if not files[i].exists()]
    done = len(mine) - len(missing)
    for chosen in _in_batches(missing, batch_size):
        images = tokenizer.decode(torch.stack([dataset[i].tokens for i in chosen]).to(tokenizer.device))
        for i, image in zip(chosen, images, strict=True):
            write_whole(files[i], to_png(image))
        done += len(chosen)
        on_progress(done, len(mine))
    wait_for_all()
    return len(dataset)


def distinct_files(stems: Iterable[str]) -> Iterator[str]:
    """A file name for each stem: its own, or with its number where an earlier one has that."""
    taken: set[str] = set()
    for number, stem in enumerate(stems):
        while stem in taken:
            stem = f"{stem}-{number}"
        taken.add(stem)
        yield f"{stem}.png"


def _stem_inside(name: str, dataset: TokenDataset) -> str:
    # Token files may come from anywhere, and are not to write anywhere.
    path = PurePosixPath(name)
    try:
        fits = path.name not in ("", "..") and not path.is_absolute() and ".." not in path.parts
        fits = fits and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise TokenError(f"{dataset.path} names an image {name!r}, which is no file inside of a folder.")
    return str(path.with_suffix(""))


def _claim(out: Path, dataset: TokenDataset) -> None:
    """Note what is being decoded, so that only the same call goes on with it."""
    note = out / _DECODED_FROM
    origin = json.dumps({"tokens": dataset.checksum}).encode()
    if not note.exists():
        # A killed process may have left a part of the note itself.
        if out.is_dir() and any(not path.name.startswith(_DECODED_FROM) for path in out.iterdir()):
            raise TokenError(f"{out} is not empty: choose a new directory for the decoded images.")
        write_whole(note, origin)
    elif note.read_bytes() != origin:
        raise TokenError(f"{out} holds images of other tokens than {dataset.path}: choose another directory.")


def _in_batches(indices: list[int], size: int) -> Iterator[list[int]]:
    return (indices[first : first + size] for first in range(0, len(indices), size))
