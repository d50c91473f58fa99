"""Groups of processes, as torchrun starts them, that run the same function."""

import multiprocessing
import multiprocessing.connection
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lgq.distributed import join_processes, leave_processes, rank

PRELOADED = ["lgq.cli", "torch._dynamo", "pytest"]


def on_processes(count: int, folder: Path, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the results of the task in each process: tensors, numbers and strings, in lists and dicts."""
    folder.mkdir(exist_ok=True)
    codes = exit_codes(count, _keep_result, folder, task, *arguments)
    assert codes == [0] * count, codes
    return [torch.load(folder / f"rank-{number}.pt", weights_only=True) for number in range(count)]


def exit_codes(count: int, task: Callable[..., Any], *arguments: Any) -> list[int | None]:
    """Return the exit codes of the processes; if one fails, the others are terminated, as by torchrun."""
    # Forked from a process that only imports: this is fast, and copies no threads.
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [
        context.Process(target=_child, args=(variables, task, arguments)) for variables in environments(count)
    ]
    for process in processes:
        process.start()
    waiting = {process.sentinel: process for process in processes}
    while waiting:
        for sentinel in multiprocessing.connection.wait(waiting):
            if waiting.pop(sentinel).exitcode:
                for process in waiting.values():
                    process.terminate()
    return [process.exitcode for process in processes]


def environments(count: int) -> list[dict[str, str]]:
    """Return the variables by which torchrun tells each process of a group which one it is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    return [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def _child(variables: dict[str, str], task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    code = 0
    try:
        join_processes()
        task(*arguments)
        leave_processes()
    except BaseException as end:
        code = end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 1
        if code == 1:
            traceback.print_exc()
    finally:
        # Without clean-up, which could wait for the other processes.
        os._exit(code)


def _keep_result(folder: Path, task: Callable[..., Any], *arguments: Any) -> None:
    number = rank()
    torch.save(task(*arguments), folder / f"rank-{number}.pt")
