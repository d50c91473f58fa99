"""Signals ask a loop to stop, and are as they were when it is over."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from lgq.training.loop import INTERRUPTED, SIGNALS, stop_on_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_sets_the_flag_and_names_itself(number):
    with stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
    assert stop.signal == number


def test_the_first_signal_is_the_one_that_is_named():
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.signal == signal.SIGUSR1


def test_a_second_interrupt_does_not_wait():
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_after_another_signal_still_waits():
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.signal == signal.SIGTERM


def test_a_second_termination_waits_as_the_first():
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop


def test_handlers_are_as_before_even_after_an_error():
    def own(number, frame):
        return None

    before = signal.signal(signal.SIGUSR1, own)
    try:
        others = {number: signal.getsignal(number) for number in SIGNALS}
        with suppress(RuntimeError), stop_on_signals():
            assert signal.getsignal(signal.SIGUSR1) is not own
            raise RuntimeError
        assert {number: signal.getsignal(number) for number in SIGNALS} == others
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_another_thread_nothing_is_installed():
    found = []

    def look() -> None:
        with stop_on_signals() as stop:
            found.append((bool(stop), signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(False, before)]


def test_the_exit_code_is_that_of_a_temporary_failure():
    assert os.EX_TEMPFAIL == INTERRUPTED == 75
