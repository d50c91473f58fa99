"""`lgq view`: a page on this machine about tokenizers, and a generator.

view(["runs/photos"], data="photos")        # until Ctrl-C
"""

import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lgq.data import ImageDataset, open_dataset
from lgq.distributed import resolve_device
from lgq.errors import LGQError
from lgq.hub import WeightsChoice
from lgq.maskgit import MaskGIT, load_generator
from lgq.progress import Progress, unwatched
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.viewer.standalone import export_page
from lgq.viewer.studio import Model, Studio

PORT = 8642
SHIPPED = "photo-f8"
"""Tokenizer that is shown if none is named."""
_HOST = "127.0.0.1"
_MOST_CONNECTIONS = 128


def view(
    runs: Sequence[str | Path | Tokenizer] = (),
    *,
    data: ImageDataset | str | Path | None = None,
    generator: MaskGIT | str | Path | None = None,
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
    export: write the page as this one HTML file instead, in which everything works but editing.
    weights: of a run, those of the best validation or those of the last checkpoint.
    device: where to compute, the words of `--device`.
    on_start: called with the address of the page, or the path of the file, as soon as it can be opened.
    """
    if export is not None:
        studio = open_studio(runs, data=data, generator=generator, weights=weights, device=device)
        export_page(studio, export, on_progress=on_progress)
        on_start(str(export))
        return
    try:
        import uvicorn

        from lgq.viewer.server import build_app
    except ModuleNotFoundError as error:
        raise LGQError(
            f"the page needs a package that is not installed ({error.name}): pip install 'lgq[viewer]'."
        ) from error
    with _listen(port) as listener:
        port = listener.getsockname()[1]
        studio = open_studio(runs, data=data, generator=generator, weights=weights, device=device)
        settings = uvicorn.Config(
            build_app(studio, port=port),
            log_level="warning",
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=20,
            timeout_graceful_shutdown=1,
        )
        threading.Thread(target=studio.study, daemon=True).start()
        on_start(f"http://{_HOST}:{port}/")
        uvicorn.Server(settings).run(sockets=[listener])


def open_studio(
    runs: Sequence[str | Path | Tokenizer] = (),
    *,
    data: ImageDataset | str | Path | None = None,
    generator: MaskGIT | str | Path | None = None,
    weights: WeightsChoice = "best",
    device: str = "cpu",
) -> Studio:
    """Load what the page shows; the arguments are those of `view`."""
    place = resolve_device(device)
    models = []
    drawing = None if generator is None else load_generator(generator, weights, device=place)
    for run in runs or (() if drawing else (SHIPPED,)):
        if isinstance(run, Tokenizer):
            models.append(Model(str(run.settings["quantizer"]), run.to(place)))
        else:
            directory = Path(run) if Path(run).is_dir() else None
            models.append(Model(_name(run), load_tokenizer(run, weights, device=place), directory))
    pictures = None if data is None or data == "sample" else open_dataset(data)
    return Studio(models, pictures, drawing)


def _name(run: str | Path) -> str:
    """Return the end of a path, which tells runs apart; of best/ and last/, the run's name too."""
    path = Path(run)
    return "/".join(path.parts[-2:]) if path.name in ("best", "last", "run") else path.name


def _listen(port: int) -> socket.socket:
    """Take the port before anything is loaded: if it is in use, nobody has to wait to hear it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        way_out = "name another one with `port`, or 0 for any that is free"
        raise LGQError(f"port {port} of {_HOST} cannot be used ({error}): {way_out}.") from error
    return listener
