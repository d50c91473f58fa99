"""A polite request to stop: signals set a flag that a loop reads between two steps.

SIGTERM (a scheduler ends the job), SIGUSR1 (Slurm's warning) and SIGINT (Ctrl-C) all ask the same:
finish the step, save, go. A second Ctrl-C does not wait: it raises KeyboardInterrupt.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 75
"""Exit code of a run that was asked to stop and has saved: run the same command again (EX_TEMPFAIL)."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Whether a signal came, and which was the first."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._interrupted = False

    def __bool__(self) -> bool:
        return self.signal is not None

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._interrupted |= number == signal.SIGINT
        self.signal = self.signal or signal.Signals(number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within, the signals only set the flag; after it they do what they did before.

    Python handles signals in the main thread alone, so in any other the flag is never set.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.signal(number, request._receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            # None is a handler that came from elsewhere than Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
