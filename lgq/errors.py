"""The base of errors that a user can fix: each message names the value, the rule and the way out."""

from typing import ClassVar


class LGQError(ValueError):
    """Base of errors about options, files, weights or disk space, as opposed to bugs of this package.

    The command line shows its message in one line and exits with `exit_code`; all other exceptions keep
    their traceback.
    """

    exit_code: ClassVar[int] = 2


class LGQWarning(UserWarning):
    """Training that will probably fail, with the likely causes and what to turn."""
