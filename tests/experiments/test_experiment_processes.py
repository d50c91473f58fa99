"""Several processes at one results directory: killed ones, shards at the same time, ranks of one training."""

import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

import torch
from tiny_experiments import finished, run_tiny

from lgq.experiments.results_directory import ResultsDirectory

Moment = tuple[str, str]
"""When a process kills itself: a call, and its number or a part of its path."""


def child(name: str, images: Path, out: Path, moment: Moment | None, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ.update(options.pop("group", {}))
    if moment is not None:
        _arm(*moment)
    os._exit(run_tiny(name, images, out, **options).exit_code)


def _arm(call: str, where: str) -> None:
    owner = torch.optim.AdamW if call == "step" else os
    plain, calls = getattr(owner, call), []

    def armed(*args: Any, **kwargs: Any) -> Any:
        calls.append(call)
        if len(calls) == int(where) if call == "step" else where in str(args[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*args, **kwargs)

    setattr(owner, call, armed)


def started(name: str, images: Path, out: Path, moment: Moment | None = None, **options: Any) -> Any:
    # Forked from a process that only imports: fast, and without the threads of this one.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lgq.experiments.runner", "torch._dynamo", "pytest"])
    process = context.Process(target=child, args=(name, images, out, moment, options))
    process.start()
    return process


def exit_code(process: Any) -> int | None:
    process.join()
    code: int | None = process.exitcode
    return code


def test_a_runner_that_is_killed_anywhere_ends_where_it_would_have_ended(images, out):
    undisturbed, killed = out / "undisturbed", out / "killed"
    asked: dict[str, Any] = {"only": ["FSQ"]}
    run_tiny("generation", images, undisturbed, **asked)
    for moment in (
        ("replace", "experiments/generation.json"),
        ("step", "3"),
        ("replace", "reconstructions.png"),
        ("replace", "originals.png"),
        ("replace", "rows/fsq"),
        ("replace", "tokens/fsq"),
        ("step", "3"),
        ("replace", "rows/maskgit"),
    ):
        assert exit_code(started("generation", images, killed, moment, **asked)) == -signal.SIGKILL, moment
        assert not ResultsDirectory(killed).records().keys() - set(finished(undisturbed)["records"])
    assert exit_code(started("generation", images, killed, **asked)) == 0
    assert finished(killed) == finished(undisturbed)


def test_two_shards_at_the_same_time_are_one_call(images, out):
    whole, parts = out / "whole", out / "parts"
    run_tiny("scaling", images, whole)
    both = [started("scaling", images, parts, shard=f"{i}/2") for i in range(2)]
    assert [exit_code(process) for process in both] == [0, 0]
    assert finished(parts) == finished(whole)


def test_ranks_of_one_training_make_one_record(images, out):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": "2"}
    groups = [address | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    ranks = [started("generation", images, out, only=["FSQ"], group=group) for group in groups]
    assert [exit_code(process) for process in ranks] == [0, 0]
    records = ResultsDirectory(out).records()
    assert sorted(record["kind"] for record in records.values()) == ["autoencoder", "generator", "tokenizer"]
    assert all(record["environment"]["world_size"] == 2 for record in records.values())
    assert all(record["metrics"] for record in records.values())
