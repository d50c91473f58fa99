"""Errors that a user can mend: the message names the value, the rule and the way out."""

from typing import ClassVar


class LGQError(ValueError):
    """Base of every error that is a matter of options, files, weights or disk space, and not of our code.

    The command line shows its message in one line and exits with `exit_code`; all other exceptions keep
    their traceback.
    """

    exit_code: ClassVar[int] = 2
