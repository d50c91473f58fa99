"""The forecast, and what it stands on, as tables for a person."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from lgq.bench.scale import Scale
from lgq.bench.scale_model import Forecast, ring_bytes
from lgq.bench.scale_turns import PROCESSES


def of_scale(found: Scale) -> list[Table]:
    return [
        _of_counts(found),
        _of_turns(found),
        _of_forecast(
            "Training on ImageNet-1k, the run's images a GPU: the global batch grows", found.training
        ),
        _of_forecast("The same with the paper's 32 images a step, however many GPUs share them", found.paper),
        _of_forecast("The paper's 32 images a step, on a slow network between nodes", found.slow),
        _of_forecast("Encoding", found.encoding, unit="image"),
    ]


def _of_counts(found: Scale) -> Table:
    table = _table("Counted and measured")
    table.add_column("what")
    table.add_column("value", justify="right")
    counts, local = found.counts, found.local
    forward, backward = found.generator
    for what, value in (
        ("operations of an image: up to its tokens", f"{counts.encoder / 1e9:,.0f} G"),
        ("operations of an image: training step, forward + backward",
         f"{counts.forward / 1e9:,.0f} G + {counts.backward / 1e9:,.0f} G"),
        ("operations of an image: generator, forward + backward",
         f"{forward / 1e9:,.0f} G + {backward / 1e9:,.0f} G"),
        ("gradients of the tokenizer, of the discriminator",
         f"{counts.gradients / 1e6:.1f} MB, {counts.late_gradients / 1e6:.1f} MB"),
        ("checkpoint", f"{counts.checkpoint / 1e6:.0f} MB"),
        ("tokens of an image", f"{counts.tokens:,} bytes"),
        ("here: photographs that one core decodes", f"{local.decoded:,.0f} a second"),
        ("here: images encoded, with reading and writing", f"{local.encoded:,.0f} a second"),
        ("here: bytes of a checkpoint", f"{local.checkpoint_bytes:,}"),
        ("here: bytes of gradients a step, summed", f"{found.turns.summed_bytes:,}"),
        ("here: bytes of gradients a step, sent by the formula",
         f"{ring_bytes(found.turns.summed_bytes, PROCESSES):,.0f}"),
        ("here: bytes sent in a step, counted",
         "-" if found.turns.sent_bytes is None else f"{found.turns.sent_bytes:,}"),
    ):  # fmt: skip
        table.add_row(what, value)
    return table


def _of_turns(found: Scale) -> Table:
    table = _table("A training step on one and on two processes of this machine")
    table.caption = "Seconds of the processor. fitted: contention * (fixed + batch * image) + exchange."
    for heading in ("step", "batch", "seconds", "fitted", "÷ alone", "on the wall"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    alone = {point.batch_size: point.seconds for point in found.turns.points if point.turn == "alone"}
    for point in found.turns.points:
        table.add_row(
            point.turn,
            str(point.batch_size),
            f"{point.seconds:.3f}",
            f"{found.fit.seconds(point):.3f}",
            f"{point.seconds / alone[point.batch_size]:.2f}",
            f"{point.wall:.3f}",
        )
    return table


def _of_forecast(title: str, rows: Sequence[Forecast], unit: str = "step") -> Table:
    table = _table(title)
    headings = ("GPUs", "nodes", f"compute\nms/{unit}", "reading\nms", "exposed\nms", "hours", "efficiency")
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("bound by")
    for row in rows:
        times = (f"{1e3 * each:,.2f}" for each in (row.compute, row.reading, row.exposed))
        share = f"{row.efficiency:.0%}"
        table.add_row(f"{row.gpus:,}", f"{row.nodes:,}", *times, f"{row.hours:,.1f}", share, row.bound)
    return table


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title_justify="left")
