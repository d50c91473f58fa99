"""The page as one file: looking, hovering, the codebook and comparisons work without a server.

The file holds the modules and styles of the page, and what the server would have answered. It loads nothing,
and its own content security policy allows nothing else.
"""

import io
import json
import re
import zlib
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from lgq.errors import LGQError
from lgq.files import write_file
from lgq.progress import Progress, unwatched
from lgq.viewer import page_files
from lgq.viewer.album import SIZES
from lgq.viewer.code_gallery import Model
from lgq.viewer.packets import (
    codebook_packet,
    encoding_packet,
    history_packet,
    pack,
    reconstruction_packet,
)
from lgq.viewer.studio import Studio

_SIZE, _MOST_PICTURES = 256, 8
_MANY_CODES, _FEW_PATCHES = 1024, 4
"""Number of codes above which fewer patches of each are kept."""


def export_page(
    studio: Studio, file: str | Path, *, size: int = _SIZE, on_progress: Progress = unwatched
) -> int:
    """Write the page of a studio as one HTML file; returns its size in bytes.

    size: longest side of the pictures in pixels, one of `SIZES`.
    """
    if size not in SIZES:
        raise LGQError(f"the size must be one of {', '.join(map(str, SIZES))} pixels, got {size}.")
    pictures = list(studio.album.pictures)[:_MOST_PICTURES]
    steps = len(studio.models) * (len(pictures) + 1)
    answers: dict[str, Any] = {"/api/state": _state(studio, pictures, size)}
    for picture in pictures:
        answers[f"/api/thumbnail?picture={picture}"] = _thumbnail(studio, picture)
    for number, model in enumerate(studio.models):
        for place, picture in enumerate(pictures):
            key = f"model={number}&picture={picture}&size={size}"
            encoding = studio.encode(number, picture, size)
            answers[f"/api/encoding?{key}"] = _packed(encoding_packet(encoding))
            for levels in range(1, model.tokenizer.levels):
                first = studio.encode(number, picture, size, levels)
                answers[f"/api/reconstruction?{key}&levels={levels}"] = _packed(reconstruction_packet(first))
            on_progress(number * (len(pictures) + 1) + place + 1, steps)
        answers |= _codes(studio, number, model)
        on_progress((number + 1) * (len(pictures) + 1), steps)
    page = _html(answers).encode()
    write_file(Path(file), page)
    return len(page)


def _state(studio: Studio, pictures: list[int], size: int) -> dict[str, Any]:
    state = studio.describe()
    shown = [picture for picture in state["pictures"] if picture["id"] in pictures]
    return state | {"pictures": shown, "sizes": [size], "generator": None}


def _thumbnail(studio: Studio, picture: int) -> str:
    buffer = io.BytesIO()
    studio.album.thumbnail(picture).save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode()}"


def _codes(studio: Studio, number: int, model: Model) -> dict[str, Any]:
    """Return what there is to know about the codes of a model; nothing where they cannot be studied."""
    if not model.galleries and not model.problem:
        studio.study_model(model)
    answers: dict[str, Any] = {}
    for stage, gallery in enumerate(model.galleries):
        key = f"model={number}&stage={stage}"
        answers[f"/api/codebook?{key}"] = _packed(codebook_packet(model, stage))
        answers[f"/api/plane?{key}&method=pca"] = _packed(
            pack({"method": "pca"}, plane=studio.plane(number, stage, "pca"))
        )
        kept = _FEW_PATCHES if len(gallery.means) > _MANY_CODES else gallery.typical.shape[1]
        typical = np.ascontiguousarray(gallery.typical[:, :kept].numpy())
        answers[f"/api/typical?{key}"] = _packed(pack({}, patches=typical))
        if model.run is not None:
            try:
                history = studio.history(number, stage)
            except LGQError:
                continue  # a run of an earlier version, or of one validation
            answers[f"/api/history?{key}"] = _packed(history_packet(history))
    return answers


def _packed(packet: bytes) -> str:
    return b64encode(zlib.compress(packet, 9)).decode()


def _html(answers: dict[str, Any]) -> str:
    files = page_files()
    style = files.pop("style.css")
    page = files.pop("index.html")
    modules = {name: re.sub(r'from "\./', 'from "lgq/', text) for name, text in files.items()}
    imports = {
        f"lgq/{name}": f"data:text/javascript;base64,{b64encode(text.encode()).decode()}"
        for name, text in modules.items()
    }
    import_map, start = json.dumps({"imports": imports}), 'import "lgq/main.js";'
    policy = (
        f"default-src 'none'; script-src {_hash(import_map)} {_hash(start)} data:; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    # No text of the data can end the element that it is in.
    saved = json.dumps(answers, separators=(",", ":")).replace("<", "\\u003c")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
        f'<script type="importmap">{import_map}</script>\n'
    )
    body = f'<script type="application/json" id="saved">{saved}</script>\n'
    body += f'<script type="module">{start}</script>\n'
    page = page.replace('<link rel="stylesheet" href="/page/style.css">\n', "")
    page = page.replace('<script type="module" src="/page/main.js"></script>\n', "")
    # The policy comes first, so that it holds for all that follows.
    page = page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{head}', 1)
    return page.replace("</body>", f"{body}</body>", 1)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
