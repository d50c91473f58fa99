"""Measurements as tables for a person."""

from collections.abc import Sequence

from rich.table import Table

from lgq.bench.contestants import PEER
from lgq.bench.encode import EncodeRow
from lgq.bench.quantizers import QuantizerRow

_MB = 1e6


def of_quantizers(rows: Sequence[QuantizerRow]) -> Table:
    table = Table(title="Forward + backward of a quantizer", caption=_QUANTIZER_CAPTION)
    for heading in ("quantizer", "by"):
        table.add_column(heading, no_wrap=True)
    for heading in ("codes", "ms", "tokens/s", "extra MB", "÷ floor", "time ÷ ours", "memory ÷ ours"):
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
        return [*start, "does not fit", *["-"] * 5]
    return [
        *start,
        f"{row.ms:,.1f}",
        f"{row.tokens_per_second:,.0f}",
        "-" if row.extra_bytes is None else f"{row.extra_bytes / _MB:,.1f}",
        f"{row.over_floor:.2f}",
        _ratio(row.over_floor, ours.over_floor) if row is not ours else "",
        _ratio(row.extra_bytes, ours.extra_bytes) if row is not ours else "",
    ]


def _ratio(value: float | None, reference: float | None) -> str:
    return f"{value / reference:.1f}" if value and reference else "-"


def of_encoding(rows: Sequence[EncodeRow]) -> Table:
    table = Table(title="Nearest-code search", caption="One GEMM is the least that an exact search needs.")
    for heading in ("codes", "ms", "tokens/s", "÷ GEMM", "faiss ms", "ours ÷ faiss", "same code"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.codebook_size:,}",
            f"{row.ms:,.1f}",
            f"{row.tokens / row.ms * 1e3:,.0f}",
            f"{row.ms / row.gemm_ms:.2f}",
            "-" if row.faiss_ms is None else f"{row.faiss_ms:,.1f}",
            "-" if row.faiss_ms is None else f"{row.ms / row.faiss_ms:.2f}",
            "-" if row.agreement is None else f"{row.agreement:.2%}",
        )
    return table
