"""What the page is answered with, by the server or inside of a file."""

import numpy as np

from lgq.viewer.code_gallery import codes_of, colours_of
from lgq.viewer.packets import pack
from lgq.viewer.studio import DrawnStep, Encoding, History, Model, quality_of, to_rgba


def encoding_packet(encoding: Encoding) -> bytes:
    """Return a picture, its tokens and its reconstruction."""
    tokens = encoding.tokens
    return pack(
        {"psnr": quality_of(encoding)},
        original=to_rgba(encoding.original),
        reconstruction=to_rgba(encoding.reconstruction),
        tokens=tokens.reshape(*tokens.shape[1:3], -1).cpu().numpy().astype(np.uint32),
    )


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
