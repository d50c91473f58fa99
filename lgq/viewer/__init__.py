"""The page in the browser: look at a tokenizer, edit tokens, study and compare codebooks, watch a generator.

`view.py` is the command, `server.py` serves the page, `guard.py` is what a browser may not ask for, `api.py`
what it may, `studio.py` the models behind it, `album.py` the pictures, `sent_tokens.py` the tokens that a
browser sends, `code_gallery.py` what there is to know about each code, `packets.py` how arrays travel.
`page/` is the page itself: ES modules, CSS and canvas.
"""

from importlib.resources import files

from lgq.errors import LGQError


class NoSuchThing(LGQError):  # noqa: N818 - the request names something that is not there
    """A model, a picture or a code that does not exist."""


def page_files() -> dict[str, str]:
    """Return the files of the page by name; a browser can ask for these alone."""
    folder = files("lgq.viewer") / "page"
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.is_file()}
