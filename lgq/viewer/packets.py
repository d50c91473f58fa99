"""Packets: what the page is answered with, by the server or inside of a file.

A packet is a JSON object and named arrays as one string of bytes, which a browser reads without copying:

    4 bytes      length of the head, little-endian
    head         JSON: {"meta": ..., "arrays": [[name, dtype, shape], ...]}, filled up with spaces
    arrays       each little-endian, in C order, filled up with zeros

Head and arrays begin at multiples of 8 bytes from the start of the head, so that typed arrays can view them.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from lgq.viewer.code_gallery import History, Model, codes_of, colours_of
from lgq.viewer.studio import DrawnStep, quality_of, to_rgba
from lgq.viewer.token_grids import Encoding, Grid

_ALIGNMENT = 8
_DTYPES = {"uint8", "uint16", "uint32", "int32", "float32"}
"""Types that a browser has typed arrays for."""


def pack(meta: dict[str, Any], **arrays: np.ndarray) -> bytes:
    """Return the packet of a JSON object and arrays."""
    contents = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    assert all(str(array.dtype) in _DTYPES for array in contents.values())
    listed = [[name, str(array.dtype), list(array.shape)] for name, array in contents.items()]
    head = json.dumps({"meta": meta, "arrays": listed}, separators=(",", ":")).encode()
    head += b" " * (-(4 + len(head)) % _ALIGNMENT)
    parts = [len(head).to_bytes(4, "little"), head]
    for array in contents.values():
        data = array.tobytes()
        parts += [data, bytes(-len(data) % _ALIGNMENT)]
    return b"".join(parts)


def unpack(packet: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON object and the arrays of a packet that `pack` wrote."""
    length = int.from_bytes(packet[:4], "little")
    head, position = json.loads(packet[4 : 4 + length]), 4 + length
    arrays = {}
    for name, dtype, shape in head["arrays"]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays[name] = np.frombuffer(packet[position : position + size], dtype).reshape(shape)
        position += size + -size % _ALIGNMENT
    return head["meta"], arrays


def encoding_packet(encoding: Encoding) -> bytes:
    """Return a picture, its tokens and its reconstruction."""
    return pack(
        {"psnr": quality_of(encoding), "grids": described_grids(encoding.grids)},
        original=to_rgba(encoding.original),
        reconstruction=to_rgba(encoding.reconstruction),
        tokens=encoding.tokens.flatten().cpu().numpy().astype(np.uint32),
    )


def reconstruction_packet(encoding: Encoding) -> bytes:
    """Return a reconstruction alone, such as that of the first stages or scales."""
    return pack({"psnr": quality_of(encoding)}, reconstruction=to_rgba(encoding.reconstruction))


def described_grids(grids: Sequence[Grid]) -> list[dict[str, int]]:
    """Return grids as JSON has them."""
    return [grid._asdict() for grid in grids]


def codebook_packet(model: Model, stage: int) -> bytes:
    """Return the codes of a stage that has been studied."""
    gallery = model.galleries[stage]
    return pack(
        {
            "images": gallery.images,
            "tokens": int(gallery.counts.sum()),
            "colour": colours_of(str(model.tokenizer.settings["quantizer"])),
        },
        counts=gallery.counts.numpy().astype(np.uint32),
        colours=gallery.colours.numpy(),
        codes=codes_of(model.tokenizer, stage).numpy().astype(np.float32),
        means=gallery.means.numpy(),
    )


def history_packet(history: History) -> bytes:
    """Return what became of the codes of a run."""
    present = {"norms": history.norms, "planes": history.planes}
    arrays = {name: array for name, array in present.items() if array is not None}
    return pack({"steps": history.steps}, counts=history.counts, **arrays)


def step_packet(drawn: DrawnStep) -> bytes:
    """Return one step of a drawing."""
    return pack(
        {"step": drawn.step, "steps": drawn.steps},
        tokens=drawn.tokens.numpy().astype(np.int32),
        probabilities=drawn.probabilities.numpy().astype(np.float32),
        pixels=to_rgba(drawn.image),
    )
