"""Inject every fault, and print the results.

make faults                                     # all of them
PYTHONPATH=tests python -m faults --only disk   # those with this word in their names
"""

import argparse
import logging
import os
import random
import sys
import time
import traceback
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from faults import damage, disk, images, kills, numbers, stored, torchrun
from faults.lab import Fault, Impossible, Lab, open_lab

MODULES = (kills, torchrun, disk, damage, stored, images, numbers)
FAULTS = tuple(fault for module in MODULES for fault in module.FAULTS)


@dataclass
class Tally:
    """Result of a fault."""

    tries: int = 0
    survived: int = 0
    lost: int = 0
    """Steps beyond the last checkpoint."""
    failures: list[str] = field(default_factory=list)
    impossible: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and places")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of faults")
    parser.add_argument("--promises", action="store_true", help="print the promises, and inject nothing")
    options = parser.parse_args()
    if options.promises:
        print("\n".join(["| fault | promise |", "| --- | --- |", *map(promise, FAULTS)]))
        return
    # Killed processes leave things behind, of which Python warns.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    logging.getLogger("lgq").setLevel(logging.ERROR)
    began, console = time.monotonic(), Console(width=100, highlight=False)
    chosen = [fault for fault in FAULTS if any(part in fault.name for part in options.only)]
    with open_lab() as lab:
        tallies = {fault.name: tally(fault, lab, options.seed) for fault in chosen}
    console.print(table(tallies))
    console.print(verdict(tallies, options.seed, time.monotonic() - began))
    sys.exit(any(result.survived < result.tries or result.lost for result in tallies.values()))


def promise(fault: Fault) -> str:
    return f"| {fault.name} | {fault.promise} |"


def tally(fault: Fault, lab: Lab, seed: int) -> Tally:
    """Meet a fault; its random numbers are its own, whichever other faults are asked for."""
    result, console = Tally(), Console(stderr=True)
    attempts = list(fault.attempts(lab, random.Random(f"{seed} {fault.name}")))
    for attempt in track(attempts, fault.name, console=console, disable=not console.is_terminal):
        try:
            lost = attempt()
        except Impossible as reason:
            result.impossible = str(reason)
            break
        except Exception:
            result.failures.append(traceback.format_exc())
            print(f"NOT SURVIVED: {fault.name}\n{result.failures[-1]}", file=sys.stderr)
        else:
            result.survived += 1
            result.lost += lost
        result.tries += 1
    return result


def table(tallies: dict[str, Tally]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD)
    drawn.add_column("fault")
    for heading in ("tries", "survived", "lost steps"):
        drawn.add_column(heading, justify="right")
    for name, result in tallies.items():
        note = f" (left out: {result.impossible})" if result.impossible else ""
        drawn.add_row(name + note, str(result.tries), str(result.survived), str(result.lost))
    return drawn


def verdict(tallies: dict[str, Tally], seed: int, seconds: float) -> str:
    tries, survived, lost = (
        sum(getattr(result, name) for result in tallies.values()) for name in ("tries", "survived", "lost")
    )
    return (
        f"{tries} faults (seed {seed}), {survived} survived, {lost} steps lost beyond the last checkpoint; "
        f"{seconds / 60:.1f} minutes"
    )


if __name__ == "__main__":
    main()
