"""Feed hostile files to every parser, and count the outcomes.

    make fuzz                                                                # 100,000 cases and more
    PYTHONPATH=tests python -m fuzz --only "tar shard" --cases 500 --seed 7
    PYTHONPATH=tests python -m fuzz --replay "tar shard" tar-shard-0-17.bin

Parsers run in child processes with bounded memory, so that a crash, a hang or exhausted memory counts like
a wrong exception. Two outcomes are documented: the file is read and its content is sound, or an LGQError
refuses it in one line. The bytes of any other case are kept, with the command that replays it, and the exit
code is 1.
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

from fuzz.mutations import mutate
from fuzz.parsers import PARSERS, Prepared

FAILURES = Path(gettempdir()) / "lgq-fuzz"
MEMORY = 2**30
"""Bytes that a parser may use beyond those of its process at the start."""
SECONDS = 30
"""Processor time that one case may take."""
_MOST_CRASHES, _MOST_KEPT = 20, 5
_DOCUMENTED = ("accepted", "refused")
_FORK = get_context("fork")


@dataclass
class Row:
    """Outcomes of the cases of one parser."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    undocumented: int = 0
    slowest: float = 0.0
    """Seconds of processor time."""
    memory: int = 0
    """Peak bytes above the start."""
    kept: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """First case of each undocumented outcome: its number and its bytes, which a crash does not send."""

    def count(self, result: str, seconds: float = 0.0, memory: int = 0, data: bytes = b"") -> None:
        if result not in _DOCUMENTED:
            self.undocumented += 1
            self.kept.setdefault(re.sub(r"\d+", "0", result)[:60], (self.cases, data))
        self.cases += 1
        self.accepted += result == "accepted"
        self.refused += result == "refused"
        self.slowest, self.memory = max(self.slowest, seconds), max(self.memory, memory)

    def show(self, name: str) -> None:
        counts = f"{self.cases:8,}{self.accepted:10,}{self.refused:9,}{self.undocumented:14,}"
        print(f"{name:29}{counts}{self.slowest:8.2f} s{self.memory / 2**20:6.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000, help="least number of cases over all parsers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=PARSERS, help="feed all cases to this parser")
    parser.add_argument("--replay", nargs=2, metavar=("PARSER", "FILE"), help="one case, with its traceback")
    options = parser.parse_args()
    if options.replay:
        return _replay(*options.replay)
    names = [options.only] if options.only else [*PARSERS]
    share = -(-options.cases // sum(1 / PARSERS[name].cost for name in names)) + len(names)
    print("parser                          cases  accepted  refused  undocumented   slowest   memory")
    rows = {}
    for name in names:
        rows[name] = _run(name, options.seed, max(1, int(share // PARSERS[name].cost)))
        rows[name].show(name)
    sums = {part: sum(getattr(row, part) for row in rows.values()) for part in list(vars(Row()))[:4]}
    peaks = {part: max(getattr(row, part) for row in rows.values()) for part in ("slowest", "memory")}
    Row(**sums, **peaks).show("all")
    for name, row in rows.items():
        for result, (number, data) in list(row.kept.items())[:_MOST_KEPT]:
            file = FAILURES / f"{name.replace(' ', '-').replace(',', '')}-{options.seed}-{number}.bin"
            with TemporaryDirectory() as folder:
                FAILURES.mkdir(exist_ok=True)
                file.write_bytes(data or _data(name, _prepared(name, Path(folder)), options.seed, number))
            print(f"{name}: {result}\n    PYTHONPATH=tests python -m fuzz --replay {name!r} {file}")
    sys.exit(any(row.undocumented for row in rows.values()))


def _run(name: str, seed: int, cases: int) -> Row:
    """Run all cases of a parser; after a crash, a new process continues with the next one."""
    row, crashes = Row(), 0
    while row.cases < cases and crashes < _MOST_CRASHES:
        receiver, sender = _FORK.Pipe(duplex=False)
        with TemporaryDirectory() as folder, receiver:
            numbers = range(row.cases, cases)
            child = _FORK.Process(target=_work, args=(name, seed, numbers, Path(folder), sender))
            child.start()
            sender.close()
            with suppress(EOFError):
                while True:
                    row.count(*receiver.recv())
            child.join()
        if row.cases < cases:
            status = child.exitcode or 0
            ending = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            hung = status in (-signal.SIGPROF, -signal.SIGALRM)
            row.count(f"no end within {SECONDS} s" if hung else f"the process ended: {ending}")
            crashes += 1
    return row


def _work(name: str, seed: int, numbers: range, folder: Path, sender: Connection) -> None:
    """In a child process, send each outcome at once: the next case may end the process."""
    torch.set_num_threads(1)
    logging.disable()
    prepared = _prepared(name, folder)
    # Read every valid file once, so that all libraries are loaded before the memory is bounded.
    for data in prepared.seeds:
        if (result := prepared.outcome(data)) not in _DOCUMENTED:
            raise AssertionError(f"{name} does not read its own seed: {result}")
    gc.collect()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    before = _peak()
    for number in numbers:
        data = _data(name, prepared, seed, number)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)  # for a pipe or a lock, which use no processor
        started = time.process_time()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = prepared.outcome(data)
        seconds = time.process_time() - started
        result = f"warning: {warned[0].message}" if warned else result
        sender.send((result, seconds, _peak() - before, b"" if result in _DOCUMENTED else data))


def _prepared(name: str, folder: Path) -> Prepared:
    torch.manual_seed(0)  # the same valid files every time
    return PARSERS[name].prepare(folder)


def _data(name: str, prepared: Prepared, seed: int, number: int) -> bytes:
    return mutate(prepared.seeds, PARSERS[name].kind, Random(f"{seed} {name} {number}"))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _replay(name: str, file: str) -> None:
    with TemporaryDirectory() as folder:
        prepared, data = _prepared(name, Path(folder)), Path(file).read_bytes()
        print(prepared.outcome(data))
        prepared.read(data)


if __name__ == "__main__":
    main()
