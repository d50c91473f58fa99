"""How long work tells how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do, of images or bytes."""


def unwatched(done: int, total: int) -> None:
    """For work that nobody follows."""
