"""The tokenizer beside what was made with it: tokens and generators keep a copy, to be whole on their own."""

from pathlib import Path

from lgq.files import replace_directory
from lgq.pretrained import PretrainedError
from lgq.tokenizer import Tokenizer, TokenizerError

COPY = "tokenizer"
"""Directory of the copy within that of the tokens, or of the generator."""


def require_room_for_copy(tokenizer: Tokenizer, folder: Path) -> bool:
    """Whether a directory still lacks the copy; anything else in its place is refused, and stays as it is."""
    place = folder / COPY
    if not place.exists():
        return True
    try:
        there = Tokenizer.from_pretrained(place).fingerprint()
    except (PretrainedError, TokenizerError, OSError):
        there = None
    if there != tokenizer.fingerprint():
        raise PretrainedError(
            f"{place} holds something else, where a copy of the tokenizer would come: "
            "choose another directory, or move it away."
        )
    return False


def leave_copy(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the copy, whole or not at all, where there is none yet."""
    if require_room_for_copy(tokenizer, folder):
        with replace_directory(folder / COPY) as directory:
            tokenizer.save_pretrained(directory)
