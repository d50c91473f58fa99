"""Processes that are killed: at any moment, alone or one of two, the run ends where it would have ended."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from identity import assert_identical
from leftovers import NO_TENSORBOARD, last_state
from tiny_run import RESTARTING, TINY, left_by, train

from lgq.training.checkpoint import Checkpoints
from lgq.training.lock import run_lock
from lgq.training.recipe import TokenizerRun

Moment = tuple[str, str, int]
"""When a process sends itself a signal: a call, part of its path or its number, the signal."""


def child(run: TokenizerRun, photos: Path, out: Path, moment: Moment | None, group: dict[str, str]) -> None:
    """Train as one process, or as the one of several that `group` describes as torchrun would."""
    torch.set_num_threads(1)
    os.environ.update(group)
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    if moment is not None:
        _arm(*moment)
    try:
        os._exit(train(run, photos, out).exit_code)
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        os._exit(2)


def _arm(call: str, where: str, number: int) -> None:
    owner = torch.optim.AdamW if call == "step" else os
    plain, calls = getattr(owner, call), []

    def armed(*args: Any, **kwargs: Any) -> Any:
        calls.append(call)
        if call == "step":
            hit = len(calls) == int(where)
        else:
            hit = where in (os.readlink(f"/proc/self/fd/{args[0]}") if call == "fsync" else str(args[0]))
        if hit:
            os.kill(os.getpid(), number)
        return plain(*args, **kwargs)

    setattr(owner, call, armed)


def in_child(run: TokenizerRun, photos: Path, out: Path, moment: Moment | None) -> int | None:
    process = _started(run, photos, out, moment, {})
    process.join()
    return process.exitcode


def in_two_children(
    run: TokenizerRun, photos: Path, out: Path, moments: tuple[Moment | None, Moment | None]
) -> list[int | None]:
    """The exit codes of both ranks; where one is killed, the other one is too, as torchrun does it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [address | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    processes = [_started(run, photos, out, *each) for each in zip(moments, ranks, strict=True)]
    waiting = {process.sentinel: process for process in processes}
    while waiting:
        for sentinel in multiprocessing.connection.wait(waiting):
            if waiting.pop(sentinel).exitcode == -signal.SIGKILL:
                for other in waiting.values():
                    other.kill()
    return [process.exitcode for process in processes]


def _started(*args: Any) -> Any:
    # Forked from a process that only imports: fast, and without the threads of this one. An optimizer
    # imports torch._dynamo, which takes a second.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lgq.training.tokenizer", "torch._dynamo", "pytest"])
    process = context.Process(target=child, args=args)
    process.start()
    return process


KILLS = [
    ("fsync", "config.json.partial"),
    ("step", "2"),
    ("fsync", "step-000002.partial/state.safetensors"),
    ("rename", "last.partial"),
    ("rename", "best.partial"),
    ("fsync", "step-000004.partial/manifest.json"),
    ("rename", "step-000006.partial"),
]


def test_a_run_killed_again_and_again_ends_as_one_that_was_never_killed(photos, tmp_path):
    assert in_child(TINY, photos, tmp_path / "unbroken", None) == 0
    broken = tmp_path / "broken"
    for call, where in KILLS:
        moment = (call, where, signal.SIGKILL.value)
        assert in_child(TINY, photos, broken, moment) == -signal.SIGKILL, f"never came to {call} {where}"
        if call != "step":
            assert list(broken.rglob(f"{where.partition('/')[0]}")), "killed before it began to write"
    assert in_child(TINY, photos, broken, None) == 0
    assert_identical(left_by(broken), left_by(tmp_path / "unbroken"))


def test_sigterm_saves_and_exits_with_the_documented_code(photos, tmp_path):
    assert in_child(TINY, photos, tmp_path, ("step", "3", signal.SIGTERM.value)) == 75
    assert Checkpoints(tmp_path / "checkpoints").latest().name == "step-000003"


def test_a_second_process_on_the_directory_is_refused(photos, tmp_path):
    with run_lock(tmp_path):
        assert in_child(TINY, photos, tmp_path, None) == 2
    assert not (tmp_path / "config.json").exists()


def test_two_processes_that_are_stopped_and_killed_end_as_two_that_were_not(photos, tmp_path):
    run = replace(RESTARTING, average_decay=0.9)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert in_two_children(run, photos, unbroken, (None, None)) == [0, 0]
    stop = ("step", "1", signal.SIGTERM.value)
    assert in_two_children(run, photos, broken, (None, stop)) == [75, 75]
    writing = ("fsync", "step-000004.partial/rank-0001.safetensors", signal.SIGKILL.value)
    assert in_two_children(run, photos, broken, (None, writing))[1] == -signal.SIGKILL
    publishing = ("rename", "step-000006.partial", signal.SIGKILL.value)
    assert in_two_children(run, photos, broken, (publishing, None))[0] == -signal.SIGKILL
    assert in_two_children(run, photos, broken, (None, None)) == [0, 0]
    assert_identical(left_by(broken), left_by(unbroken))
    assert_identical(last_state(broken, rank=1), last_state(unbroken, rank=1))
