"""`lgq view`: a page on this machine about tokenizers, and a generator.

view(["runs/photos"], data="photos")        # until Ctrl-C
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lgq
from lgq.errors import LGQError
from lgq.files import WeightsChoice, require_writable
from lgq.model_sources import CONFIG, require_findable, require_kind
from lgq.progress import Progress, unwatched

if TYPE_CHECKING:
    import lgq.data

PORT = 8642
_NO_PLAIN_PATH = re.compile(r"[{*?\[]|^sample(:|$)|^pipe:|://")
_PATIENCE = 20
"""Seconds to wait for what is computed in the background to end."""


def view(
    runs: "Sequence[str | Path | lgq.Tokenizer]" = (),
    *,
    data: "lgq.data.ImageDataset | str | Path | None" = None,
    generator: "lgq.MaskGIT | str | Path | None" = None,
    port: int = PORT,
    export: str | Path | None = None,
    weights: WeightsChoice = "best",
    device: str = "cpu",
    on_start: Callable[[str], None] = print,
    on_progress: Progress = unwatched,
) -> None:
    """Serve the page on 127.0.0.1 until Ctrl-C, or write it as one file.

    runs: tokenizers, or what `load_tokenizer` takes; by default the one that comes with lgq.
    data: images to begin with, and to study codes on; None for the embedded photographs.
    generator: a generator, or what `load_generator` takes, to draw and redraw pictures with. Without `runs`,
        the page shows its tokenizer.
    port: port to listen on; 0 takes a free one.
    export: write the page as this one HTML file instead, without editing, generating, LPIPS and opening of
        pictures of one's own, which need the models.
    weights: of a run, those of the best validation or those of the last checkpoint.
    device: where to compute, the words of `--device`.
    on_start: called with the address of the page, or the path of the file, as soon as it can be opened.
    """
    if export is not None:
        _require_place_for_page(Path(export))
    _require_models(runs, generator)
    _require_path(data)
    # PyTorch and the models are loaded where they are needed: the page shows earlier.
    if export is not None:
        from lgq.viewer.standalone import export_page
        from lgq.viewer.studio import open_studio

        studio = open_studio(runs, data=data, generator=generator, weights=weights, device=device)
        export_page(studio, export, on_progress=on_progress)
        on_start(str(export))
        return
    try:
        from lgq.viewer.server import HOST, Opening, build_app, build_server
    except ModuleNotFoundError as error:
        raise LGQError(
            f"the page needs a package that is not installed ({error.name}): pip install 'lgq[viewer]'."
        ) from error
    with _listen(HOST, port) as listener:
        port = listener.getsockname()[1]
        opening, failures, studios, ending = Opening(), [], list[Any](), threading.Event()
        server = build_server(build_app(opening, port=port))

        def prepare() -> None:
            try:
                opening.doing = "starting PyTorch"
                from lgq.viewer.api import api_of
                from lgq.viewer.studio import open_studio

                studio = open_studio(
                    runs,
                    data=data,
                    generator=generator,
                    weights=weights,
                    device=device,
                    on_load=lambda name: setattr(opening, "doing", f"loading {name}"),
                )
                studios.append(studio)
                if ending.is_set():
                    return
                opening.doing = "encoding the first picture"
                studio.encode_first()
                opening.api = api_of(studio)
            except Exception as error:
                failures.append(error)
                server.should_exit = True
                return
            if not ending.is_set():
                studio.study()

        preparing = threading.Thread(target=prepare, daemon=True)
        preparing.start()
        on_start(f"http://{HOST}:{port}/")
        try:
            server.run(sockets=[listener])
        finally:
            ending.set()
            for studio in studios:
                studio.close()
            preparing.join(_PATIENCE)  # PyTorch aborts the process if it still computes when Python ends
    if failures:
        raise failures[0]


def _require_place_for_page(file: Path) -> None:
    """Check before long work that the page can be written there."""
    if file.is_dir():
        raise LGQError(f"`export` must be a file, got the directory {file}: give {file / 'page.html'}.")
    require_writable(file.parent)


def _require_models(
    runs: "Sequence[str | Path | lgq.Tokenizer]", generator: "lgq.MaskGIT | str | Path | None"
) -> None:
    """Check what needs no model to be loaded, before the address is announced."""
    for run in runs:
        if isinstance(run, str | Path):
            require_findable(run)
            require_kind(run, "tokenizer", way_out=f"use `generator` {run}")
            if Path(run).is_dir() and not (Path(run) / CONFIG).is_file():
                raise LGQError(f"{run} holds no run and no saved model: give a folder of images as `data`.")
    if isinstance(generator, str | Path):
        require_findable(generator)
        require_kind(generator, "generator")


def _require_path(data: "lgq.data.ImageDataset | str | Path | None") -> None:
    """Check that a plain path exists: no pattern, stream, address or embedded photographs."""
    if not isinstance(data, str | Path) or not str(data) or _NO_PLAIN_PATH.search(str(data)):
        return
    if not os.path.exists(os.path.expanduser(data)):
        way_out = "give a folder of images, a pattern of .tar files, or `sample`"
        raise LGQError(f"`data` {data} does not exist: {way_out}.")


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before anything is loaded: if it is in use, nobody has to wait to hear it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        way_out = "name another one with `port`, or 0 for any that is free"
        raise LGQError(f"port {port} of {host} cannot be used ({error}): {way_out}.") from error
    return listener
