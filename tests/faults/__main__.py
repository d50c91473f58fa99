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
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from faults import damage, disk, images, kills, numbers, torchrun
from faults.lab import Fault, Impossible, Lab, open_lab

MODULES = (kills, torchrun, disk, damage, images, numbers)
FAULTS = tuple(fault for module in MODULES for fault in module.FAULTS)


@dataclass
class Tally:
    """Result of a fault."""

    tries: int = 0
    survived: int = 0
    lost: int = 0
    """Steps beyond the last checkpoint."""
    note: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and places")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of faults")
    parser.add_argument("--promises", action="store_true", help="print the promises, and inject nothing")
    options = parser.parse_args()
    if options.promises:
        rows = [f"| {fault.name} | {fault.promise} |" for fault in FAULTS]
        return print("\n".join(["| fault | promise |", "| --- | --- |", *rows]))
    # Killed processes leave things behind, of which Python warns.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    logging.getLogger("lgq").setLevel(logging.ERROR)
    began, console = time.monotonic(), Console(width=100, highlight=False)
    table = Table("fault", "tries", "survived", "lost steps", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    total = Tally()
    with open_lab() as lab:
        for fault in FAULTS:
            if any(part in fault.name for part in options.only):
                result = tally(fault, lab, options.seed)
                counts = result.tries, result.survived, result.lost
                table.add_row(fault.name + result.note, *map(str, counts))
                total = Tally(total.tries + counts[0], total.survived + counts[1], total.lost + counts[2])
    console.print(table)
    console.print(
        f"{total.tries} faults (seed {options.seed}), {total.survived} survived, {total.lost} steps lost "
        f"beyond the last checkpoint; {(time.monotonic() - began) / 60:.1f} minutes"
    )
    sys.exit(total.survived < total.tries or total.lost > 0)


def tally(fault: Fault, lab: Lab, seed: int) -> Tally:
    """Meet a fault; its random numbers are its own, whichever other faults are asked for."""
    result, console = Tally(), Console(stderr=True)
    attempts = list(fault.attempts(lab, random.Random(f"{seed} {fault.name}")))
    for attempt in track(attempts, fault.name, console=console, disable=not console.is_terminal):
        try:
            result.lost += attempt()
            result.survived += 1
        except Impossible as reason:
            result.note = f" (left out: {reason})"
            break
        except Exception:
            print(f"NOT SURVIVED: {fault.name}\n{traceback.format_exc()}", file=sys.stderr)
        result.tries += 1
    return result


if __name__ == "__main__":
    main()
