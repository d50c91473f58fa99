"""`lgq view`: a page in the browser about tokenizers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lgq.cli.console import progress_of, say
from lgq.cli.options import Computes
from lgq.files import WeightsChoice
from lgq.viewer.view import PORT, view


@dataclass(frozen=True, kw_only=True)
class View(Computes):
    """Show tokenizers on a page in the browser: pictures, tokens, edits, codes. Ctrl-C ends it.

    Only this machine can open the page. Nothing leaves it.
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")] = ()
    """Run directories, directories that `save_pretrained` wrote, or owner/name on the Hub; by default the
    tokenizer that comes with lgq, photo-f8."""
    data: str | None = None
    """Images to begin with, and to study the codes on: a folder, a shard pattern such as
    train-{000..005}.tar, or by default the embedded photographs."""
    generator: Annotated[str | None, tyro.conf.arg(metavar="GEN")] = None
    """Run directory of a generator, a directory that `save_pretrained` wrote, or owner/name on the Hub, to
    draw pictures and to redraw parts of them; without RUN, the page shows its tokenizer."""
    port: int = PORT
    """Port of 127.0.0.1 that the page is served on; 0 takes a free one."""
    export: Path | None = None
    """Write the page as this one HTML file instead of serving it, to look at without a server and a network.
    It has no editing, generating, LPIPS or opening of pictures of one's own, which need the models."""
    weights: WeightsChoice = "best"
    """Weights of a run to load: of the best validation, or of the last checkpoint."""

    def run(self) -> int:
        if self.export is None:
            view(**vars(self), on_start=lambda address: say(f"open {address} in a browser; Ctrl-C ends it."))
            return 0
        if self.generator is not None:
            say("the saved page leaves the generator out, as it cannot draw without the model.")
        with progress_of("writing the page") as report:
            view(**vars(self), on_start=lambda _: None, on_progress=report)
        say(f"the page, {self.export.stat().st_size / 1e6:.1f} MB: {self.export}")
        return 0
