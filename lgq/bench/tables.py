"""Measurements as tables that fit a terminal of 80 columns."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from lgq.bench.encode import EncodeRow
from lgq.bench.evaluate import EvaluateRow
from lgq.bench.quantizers import PAPER_MS, PEER, QuantizerRow
from lgq.bench.sample import SampleRow
from lgq.bench.train import PARTS, TrainRow


def quantizer_table(rows: Sequence[QuantizerRow]) -> Table:
    caption = (
        "floor: six GEMMs, which soft assignment to all codes needs, in the same run. "
        "÷ ours: ratio of memory, and of times: the peer's in turns with ours, others' over their floors. "
        f"peer: {PEER}. "
        "kernels: ours with fused kernels. paper: its ms on an H100, for 8,192 tokens."
    )
    headings = ("quantizer", "by", "codes", "ms", "tokens\n/s", "extra\nMB", "÷\nfloor", "time\n÷ ours")
    more = ("memory\n÷ ours", "paper\nms")
    table = _table("Forward + backward pass of a quantizer", caption, (*headings, *more), 2)
    ours = {(r.quantizer, r.codebook_size): r for r in rows if r.implementation == "ours"}
    for row in rows:
        reference = ours[row.quantizer, row.codebook_size]
        time, memory = "", ""
        if row.ours_ms is not None:
            time = _ratio(row.ms, row.ours_ms, ".2f")
        elif row is not reference:
            time = _ratio(row.over_floor, reference.over_floor, ".1f")
        if row is not reference:
            memory = _ratio(row.extra_bytes, reference.extra_bytes, ".2f")
        table.add_row(
            row.quantizer,
            "peer" if row.implementation == PEER else row.implementation,
            f"{row.codebook_size:,}",
            "too big" if row.ms is None else _number(row.ms),
            _number(row.ms and row.tokens / row.ms * 1e3),
            _number(row.extra_bytes and row.extra_bytes / 1e6),
            _number(row.over_floor, ".2f"),
            time,
            memory,
            _number(PAPER_MS.get((row.quantizer, row.codebook_size)), ".2f") if row is reference else "",
        )
    return table


def encode_table(rows: Iterable[EncodeRow]) -> Table:
    headings = ("codes", "ms", "tokens/s", "÷ GEMM", "faiss ms", "ours ÷ faiss", "same code")
    table = _table("Nearest-code search", "An exact search needs at least one GEMM.", headings)
    for row in rows:
        ours = (_number(row.ms), _number(row.tokens / row.ms * 1e3), _ratio(row.ms, row.gemm_ms))
        faiss = (_number(row.faiss_ms), _ratio(row.ms, row.faiss_ms), _number(row.agreement, ".2%"))
        table.add_row(f"{row.codebook_size:,}", *ours, *faiss)
    return table


def train_table(rows: Iterable[TrainRow]) -> Table:
    caption = "plain: float32, channels first, dense quantizer. Right: share of each part in a step."
    # In two lines, so that all parts fit side by side.
    parts = (part.replace("coder", "-\ncoder").replace("izer", "-\nizer") for part in PARTS)
    headings = ("variant", "images\n/s", "÷\nplain", "÷\ncached", *parts)
    table = _table("Training step of a tokenizer", caption, headings, 1)
    for row in rows:
        rates = (_number(row.images_per_second), f"{row.over_plain:.2f}", f"{row.over_cached:.2f}")
        shares = (f"{row.shares[part]:.0%}" if row.shares else "" for part in PARTS)
        table.add_row(row.variant, *rates, *shares)
    return table


def evaluate_table(rows: Iterable[EvaluateRow]) -> Table:
    caption = "÷: time over that of the reference, in turns in one run."
    headings = ("measured", "reference", "seconds", "reference\nseconds", "÷", "difference")
    table = _table("Evaluation", caption, headings, 2)
    for row in rows:
        times = (f"{row.seconds:.2f}", f"{row.reference_seconds:.2f}", f"{row.ratio:.3f}")
        table.add_row(row.name, row.reference, *times, _number(row.difference, ".0e"))
    return table


def sample_table(rows: Iterable[SampleRow]) -> Table:
    caption = (
        "÷ full forward: time to tokens over as many forward passes that predict every position, in turns in "
        "one run. overhead: sampling over forward passes and decoding."
    )
    headings = ("images\n/s", "forward\nms", "sampling\nms", "decoding\nms", "÷ full\nforward", "overhead")
    table = _table("Sampling a batch of images", caption, ("sampling", *headings), 1)
    for row in rows:
        times = map(_number, (row.images_per_second, row.forward_ms, row.sampling_ms, row.decoding_ms))
        table.add_row(row.sampling, *times, f"{row.over_full_forwards:.3f}", f"{row.overhead:.1%}")
    return table


def _table(title: str, caption: str, headings: Sequence[str], words: int = 0) -> Table:
    """An empty table; the first `words` columns hold words, the others numbers."""
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i < words else "right", no_wrap=True)
    return table


def _ratio(value: float | None, reference: float | None, style: str = ".2f") -> str:
    return _number(value / reference if value and reference else None, style)


def _number(value: float | None, style: str = "") -> str:
    """The number in a given style, or with few digits; - for None."""
    if value is None:
        return "-"
    if style:
        return format(value, style)
    return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
