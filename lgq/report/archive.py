"""What a page is made of, without the weights behind it: small enough to keep beside a paper, or in git."""

from pathlib import Path

from lgq.experiments.results_directory import RowsError
from lgq.files import make_directory, replace_file
from lgq.report.album import shown_files
from lgq.report.ledger import Ledger, read_ledger
from lgq.training.journal import METRICS


def keep_results(results: str | Path, out: str | Path) -> int:
    """Copy plans, records, curves, and the pictures that a page shows; returns their bytes.

    The copy is itself a RESULTS directory: it gives the same page, and `lgq experiment` finds its finished
    rows in it.
    """
    ledger, target = read_ledger(results), Path(out)
    source = ledger.results.root
    if target.resolve() == source.resolve():
        raise RowsError(f"{out} is the results themselves: choose another directory to keep them in.")
    files = _files(ledger)
    for file in files:
        place = target / file.relative_to(source)
        make_directory(place.parent)
        replace_file(place, file.read_bytes())
    return sum(file.stat().st_size for file in files)


def _files(ledger: Ledger) -> list[Path]:
    """Runs that are not finished stay behind."""
    root = ledger.results.root
    named = [*root.glob("experiments/*.json"), *root.glob("rows/*.json"), *shown_files(ledger)]
    curves = [ledger.results.run(id) / METRICS for id in ledger.runs]
    return sorted(file for file in [*named, *curves] if file.is_file())
