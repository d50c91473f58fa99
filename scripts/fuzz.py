"""Feed hostile files to every parser, and count what comes of it.

    python scripts/fuzz.py                                          # 100,000 cases and more
    python scripts/fuzz.py --only "tar shard" --cases 500 --seed 7
    python scripts/fuzz.py --replay "tar shard" tar-shard-0-17.bin

Parsers run in child processes of bounded memory: a crash, a hang and an exhausted memory are seen like a
wrong exception. Every outcome must be documented: the file is read, and what was read is sound; or it is
refused by an error of the project, in one line. The bytes of any other outcome are kept, with the command
that replays them, and the exit code is 1.
"""

import argparse
import gc
import logging
import re
import resource
import signal
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, gettempdir

import torch
from fuzz_mutations import mutate
from fuzz_parsers import PARSERS, Prepared, outcome

FAILURES = Path(gettempdir()) / "lgq-fuzz"
MEMORY = 2**30
"""Bytes that a parser may take beyond what its process has at the start."""
SECONDS = 30
"""Of computing that one case may take."""
_MOST_CRASHES, _MOST_KEPT = 20, 5
_DOCUMENTED = ("accepted", "refused")
_FORK = get_context("fork")


@dataclass
class Row:
    """What came of the cases of one parser."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    """Seconds of computing."""
    memory: int = 0
    """Bytes at the peak, above the start."""
    undocumented: int = 0
    kept: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """First undocumented cases by what came of them: number and bytes, which a crash does not tell."""


def main() -> None:
    arguments = _arguments()
    if arguments.replay:
        return _replay(*arguments.replay)
    names = [name for name in PARSERS if arguments.only in (None, name)]
    share = arguments.cases if arguments.only else _share(arguments.cases)
    rows = {}
    print(
        f"{'parser':29}{'cases':>8}{'accepted':>10}{'refused':>9}{'undocumented':>14}{'slowest':>10}{'memory':>9}"
    )
    for name in names:
        rows[name] = _run(name, arguments.seed, max(1, share // PARSERS[name].cost))
        _print(name, rows[name])
    _print("all", _total(list(rows.values())))
    for name, row in rows.items():
        for what, case in list(row.kept.items())[:_MOST_KEPT]:
            print(_keep(name, arguments.seed, *case, what))
    sys.exit(any(row.undocumented for row in rows.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000, help="of all parsers, at least; or of one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=PARSERS, help="this parser alone")
    parser.add_argument("--replay", nargs=2, metavar=("PARSER", "FILE"), help="one case, with its traceback")
    return parser.parse_args()


def _share(cases: int) -> int:
    """Cases of a parser of cost 1, so that all together are no fewer than asked for."""
    return -int(-cases // sum(1 / parser.cost for parser in PARSERS.values())) + len(PARSERS)


def _run(name: str, seed: int, cases: int) -> Row:
    """All cases of a parser; after a crash, those that follow it."""
    row, crashes = Row(), 0
    while row.cases < cases and crashes < _MOST_CRASHES:
        status = _run_child(name, seed, cases, row)
        if row.cases < cases:
            _count(row, _ending(status), 0, 0, b"")
            crashes += 1
    return row


def _run_child(name: str, seed: int, cases: int, row: Row) -> int:
    """From the first case that is not counted yet; the exit status of the process."""
    receiver, sender = _FORK.Pipe(duplex=False)
    with TemporaryDirectory() as folder, receiver:
        child = _FORK.Process(target=_work, args=(name, seed, range(row.cases, cases), Path(folder), sender))
        child.start()
        sender.close()
        with suppress(EOFError):
            while True:
                _count(row, *receiver.recv())
        child.join()
    return child.exitcode or 0


def _count(row: Row, what: str, seconds: float, memory: int, data: bytes) -> None:
    if what not in _DOCUMENTED:
        row.undocumented += 1
        row.kept.setdefault(re.sub(r"\d+", "0", what)[:60], (row.cases, data))
    row.cases += 1
    row.accepted += what == "accepted"
    row.refused += what == "refused"
    row.slowest, row.memory = max(row.slowest, seconds), max(row.memory, memory)


def _ending(status: int) -> str:
    if status in (-signal.SIGPROF, -signal.SIGALRM):
        return f"no end within {SECONDS} s"
    return f"the process ended: {signal.Signals(-status).name if status < 0 else f'exit code {status}'}"


def _work(name: str, seed: int, numbers: range, folder: Path, sender: Connection) -> None:
    """In a child process: tell of each case as soon as it is done, for the next may be the end."""
    torch.set_num_threads(1)
    prepared = _prepared(name, folder)
    _settle(name, prepared)
    before = _peak()
    for number in numbers:
        data = _data(name, prepared, seed, number)
        what, seconds = _case(name, prepared, data)
        sender.send((what, seconds, _peak() - before, b"" if what in _DOCUMENTED else data))


def _prepared(name: str, folder: Path) -> Prepared:
    """The same valid files, whenever they are made."""
    torch.manual_seed(0)
    return PARSERS[name].prepare(folder)


def _data(name: str, prepared: Prepared, seed: int, number: int) -> bytes:
    return mutate(prepared.seeds, PARSERS[name].kind, Random(f"{seed} {name} {number}"))


def _settle(name: str, prepared: Prepared) -> None:
    """Read every valid file once, so that no library comes to be loaded later; then bound the memory."""
    logging.disable()
    for data in prepared.seeds:
        if (what := outcome(PARSERS[name], prepared, data)) not in _DOCUMENTED:
            raise AssertionError(f"{name} does not read its own seed: {what}")
    gc.collect()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))


def _case(name: str, prepared: Prepared, data: bytes) -> tuple[str, float]:
    """The outcome, and seconds of computing."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)  # for a pipe or a lock, which cost no computing
    began = time.process_time()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        what = outcome(PARSERS[name], prepared, data)
    seconds = time.process_time() - began
    return f"warning: {warned[0].message}" if warned else what, seconds


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _print(name: str, row: Row) -> None:
    counts = f"{row.cases:8,}{row.accepted:10,}{row.refused:9,}{row.undocumented:14,}"
    print(f"{name:29}{counts}{row.slowest:8.2f} s{row.memory / 2**20:6.0f} MB", flush=True)


def _total(rows: list[Row]) -> Row:
    total = Row(slowest=max(row.slowest for row in rows), memory=max(row.memory for row in rows))
    for row in rows:
        total.cases += row.cases
        total.accepted += row.accepted
        total.refused += row.refused
        total.undocumented += row.undocumented
    return total


def _keep(name: str, seed: int, number: int, data: bytes, what: str) -> str:
    """Write the bytes of a case down; in words, what came of it and how to see it again."""
    FAILURES.mkdir(exist_ok=True)
    file = FAILURES / f"{name.replace(' ', '-').replace(',', '')}-{seed}-{number}.bin"
    with TemporaryDirectory() as folder:
        file.write_bytes(data or _data(name, _prepared(name, Path(folder)), seed, number))
    return f"{name}: {what}\n    python scripts/fuzz.py --replay {name!r} {file}"


def _replay(name: str, file: str) -> None:
    with TemporaryDirectory() as folder:
        prepared = _prepared(name, Path(folder))
        data = Path(file).read_bytes()
        print(outcome(PARSERS[name], prepared, data))
        prepared.read(data)


if __name__ == "__main__":
    main()
