"""A fault: what it is called, what is promised, and ways to meet it."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from faults.lab import Lab

Attempt = Callable[[], int]
"""Meet the fault once; returns steps lost beyond the last checkpoint, or raises where a promise is broken."""


class Impossible(Exception):  # noqa: N818 - no error: the machine cannot do this
    """This machine cannot make the fault, for the reason given."""


@dataclass(frozen=True)
class Fault:
    name: str
    promise: str
    attempts: Callable[[Lab, random.Random], Iterable[Attempt]]
    """All of them, in any order; the same for the same chance."""
