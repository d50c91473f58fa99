"""Tokens and results with damaged files: whatever reads them notices every bit that changed."""

from pathlib import Path

import torch
from token_sets import write_tokens

from faults.damage import Damage, cuts, damages, flips, refusal
from faults.lab import Fault, Lab, contents
from lgq.data.token_format import TokenError
from lgq.data.tokens import TokenDataset
from lgq.experiments.results_directory import ResultsDirectory
from lgq.results import ResultsError, append_result, read_results

RECORDS = [{"kind": "tokenizer", "seed": seed, "metrics": {"psnr": 20.0 + seed}} for seed in range(3)]
TOKENS = ("tokens.json", "tokens-00000.safetensors", "tokens-00001.safetensors")


def tokens(lab: Lab, name: str, damage: Damage) -> int:
    """Refused when they are opened or verified; encoded again, they are what they were."""
    with lab.place() as folder:
        _encode(folder)
        whole = contents(folder)
        damage(folder / name)
        message = refusal(lambda: list(TokenDataset(folder)), TokenError)
        assert str(folder) in message, message
        _encode(folder)
        assert contents(folder) == whole, "encoding again did not mend it"
    return 0


def _encode(folder: Path) -> None:
    numbers = torch.arange(7 * 4).reshape(7, 2, 2) % 6
    write_tokens(folder, numbers, labels=[0, 1, 2, 0, 1, 2, 0], classes=("a", "b", "c"), shard_size=4)


def rows(lab: Lab, damage: Damage) -> int:
    """The damaged row is refused; the others are read as they were."""
    with lab.place() as folder:
        results = ResultsDirectory(folder)
        for record in RECORDS:
            results.write_record(f"row-{record['seed']}", record)
        damage(folder / "rows" / "row-1.json")
        refusal(lambda: results.record("row-1"), ResultsError)
        assert [results.record(f"row-{seed}") for seed in (0, 2)] == [RECORDS[0], RECORDS[2]]
    return 0


def lines(lab: Lab, damage: Damage, least: int) -> int:
    """Damaged lines are left out, no line is read wrongly, and new ones can be added."""
    with lab.place() as folder:
        file = folder / "results.jsonl"
        for record in RECORDS:
            append_result(file, record)
        damage(file)
        read = read_results(file)
        assert len(read) >= least, read
        for record in read:
            assert record in RECORDS, record
        append_result(file, {"seed": 3})
        assert read_results(file)[-1] == {"seed": 3}
    return 0


FAULTS = (
    Fault(
        "token shard or header cut, flipped or missing",
        "Refused in one line; the same `lgq encode` mends it, bit for bit.",
        tokens,
        damages(TOKENS, lambda c: (*cuts(c, 4), *flips(c, 8), Path.unlink)),
    ),
    Fault(
        "results row cut or flipped",
        "Refused in one line; no number is ever read wrongly.",
        rows,
        lambda _, c: [(damage,) for damage in (*cuts(c, 8), *flips(c, 24))],
    ),
    Fault(
        "results.jsonl cut or flipped",
        "The line is left out with a warning; all others are read, and new ones can be added.",
        lines,
        # A flipped bit in a line's end makes one line of two.
        lambda _, c: [(d, 0) for d in cuts(c, 8)] + [(d, len(RECORDS) - 2) for d in flips(c, 24)],
    ),
)
