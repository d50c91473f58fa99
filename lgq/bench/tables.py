"""Measurements as tables for a person."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from lgq.bench.contestants import PEER
from lgq.bench.encode import EncodeRow
from lgq.bench.evaluate import EvaluateRow
from lgq.bench.quantizers import QuantizerRow
from lgq.bench.sample import SampleRow
from lgq.bench.stopwatch import PARTS
from lgq.bench.train import TrainRow

_MB = 1e6


def of_quantizers(rows: Sequence[QuantizerRow]) -> Table:
    table = _table("Forward + backward of a quantizer", _QUANTIZER_CAPTION)
    for heading in ("quantizer", "by"):
        table.add_column(heading)
    for heading in ("codes", "ms", "tokens\n/s", "extra\nMB", "÷\nfloor", "time\n÷ ours", "memory\n÷ ours"):
        table.add_column(heading, justify="right")
    for row in rows:
        ours = next(other for other in rows if _same(row, other) and other.implementation == "ours")
        table.add_row(*_cells(row, ours))
    return table


_QUANTIZER_CAPTION = (
    "floor: the six GEMMs that all-code soft assignment cannot do without, in the same run. "
    f"÷ ours: of the times over their floors, and of the extra memory. peer: {PEER}."
)


def _same(a: QuantizerRow, b: QuantizerRow) -> bool:
    return (a.quantizer, a.codebook_size) == (b.quantizer, b.codebook_size)


def _cells(row: QuantizerRow, ours: QuantizerRow) -> list[str]:
    implementation = "peer" if row.implementation == PEER else row.implementation
    start = [row.quantizer, implementation, f"{row.codebook_size:,}"]
    if not row.fits:
        return [*start, "too big", *["-"] * 5]
    return [
        *start,
        _number(row.ms),
        _number(row.tokens_per_second),
        _number(None if row.extra_bytes is None else row.extra_bytes / _MB),
        f"{row.over_floor:.2f}",
        _ratio(row.over_floor, ours.over_floor) if row is not ours else "",
        _ratio(row.extra_bytes, ours.extra_bytes) if row is not ours else "",
    ]


def _ratio(value: float | None, reference: float | None) -> str:
    return f"{value / reference:.1f}" if value and reference else "-"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _table(title: str, caption: str) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    return Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))


def of_encoding(rows: Sequence[EncodeRow]) -> Table:
    table = _table("Nearest-code search", "One GEMM is the least that an exact search needs.")
    for heading in ("codes", "ms", "tokens/s", "÷ GEMM", "faiss ms", "ours ÷ faiss", "same code"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.codebook_size:,}",
            _number(row.ms),
            _number(row.tokens / row.ms * 1e3),
            f"{row.ms / row.gemm_ms:.2f}",
            _number(row.faiss_ms),
            "-" if row.faiss_ms is None else f"{row.ms / row.faiss_ms:.2f}",
            "-" if row.agreement is None else f"{row.agreement:.2%}",
        )
    return table


def of_training(rows: Sequence[TrainRow]) -> Table:
    caption = (
        "plain: float32, channels first, n x k quantizer. Right: shares of a step, forward and backward."
    )
    table = _table("A training step of a tokenizer", caption)
    table.add_column("step", no_wrap=True)
    for heading in ("images\n/s", "÷\nplain", "÷\ncached", *map(_hyphenated, PARTS)):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shares = [f"{row.shares[part]:.0%}" if row.shares else "" for part in PARTS]
        rates = [_number(row.images_per_second), f"{row.over_plain:.2f}", f"{row.over_cached:.2f}"]
        table.add_row(row.contestant, *rates, *shares)
    return table


def _hyphenated(part: str) -> str:
    """In two lines, so that all parts fit side by side."""
    return part.replace("coder", "-\ncoder").replace("izer", "-\nizer").replace("ses", "-\nses")


def of_evaluation(rows: Sequence[EvaluateRow]) -> Table:
    table = _table("Evaluation", "÷: its time over that of what is beside it, in turns in one run.")
    for heading in ("what", "seconds", "beside", "seconds", "÷", "difference", "extra MB"):
        table.add_column(heading, justify="left" if heading in ("what", "beside") else "right")
    for row in rows:
        table.add_row(
            row.what,
            f"{row.seconds:.2f}",
            row.beside or "",
            "" if row.beside_seconds is None else f"{row.beside_seconds:.2f}",
            "" if row.ratio is None else f"{row.ratio:.3f}",
            "" if row.difference is None else f"{row.difference:.0e}",
            "" if row.extra_bytes is None else _number(row.extra_bytes / _MB),
        )
    return table


def of_sampling(rows: Sequence[SampleRow]) -> Table:
    table = _table("Drawing a batch of images", _SAMPLING_CAPTION)
    table.add_column("sampling", no_wrap=True)
    headings = ("images\n/s", "forwards\nms", "sampling\nms", "decoding\nms")
    for heading in (*headings, "÷ full\nforwards", "÷ own\nforwards", "over-\nhead"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.sampling,
            _number(row.images_per_second),
            _number(row.forward_ms),
            _number(row.sampling_ms),
            _number(row.decoding_ms),
            f"{row.over_full_forwards:.3f}",
            f"{row.over_own_forwards:.3f}",
            f"{row.overhead:.1%}",
        )
    return table


_SAMPLING_CAPTION = (
    "÷: forwards and sampling, over as many forwards that ask for every place, and over the same forwards "
    "alone, in turns in one run. overhead: sampling over forwards and decoding."
)
