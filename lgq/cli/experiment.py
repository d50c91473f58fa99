"""`lgq experiment`: a table of the paper, row by row."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lgq.bench.quantizers import QuantizerBenchmark, networks_ms, run
from lgq.cli.console import command_line, say
from lgq.cli.places import require_place
from lgq.data import open_dataset
from lgq.data.stream import require_random_access
from lgq.distributed import rank
from lgq.errors import LGQError
from lgq.evaluation import draw_extremes
from lgq.experiments import SCALES, Scale, named_experiment
from lgq.experiments.estimate import Estimate, estimate_rows
from lgq.experiments.plan import Experiment as Asked
from lgq.experiments.plan import Sources, seeded_rows
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.runner import Ending, chosen, run_experiment, share_of
from lgq.experiments.tasks import CostTask
from lgq.experiments.workplace import Crew, Drawable
from lgq.metrics.codebook_study import draw_study
from lgq.training.settings import Precision


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Train and evaluate the rows of a table; finished rows are kept, and the same command goes on."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """comparison, codebook-size, logits, geometry, generation, regularizers, temperature, cost, scaling,
    seeds, search or beyond."""
    scale: Literal["smoke", "pocket", "imagenet256"]
    """The paper's (imagenet256), hours of two CPU cores (pocket), or seconds (smoke)."""
    data: str
    """Images to train on: a folder, a shard pattern such as train-{000..005}.tar, or `sample`."""
    val_data: str | None = None
    """Images to validate and evaluate on; without, those of the training."""
    show: str | None = None
    """Images to look at, eight of which every row shows; by default those to validate on. Others, such as
    `sample:whole`, are for data that may not be published."""
    out: Path
    """The results directory, which several machines may share."""
    seeds: int | None = None
    """Training seeds of each row, from 0 on; by default 1, and 5 of the experiment `seeds`."""
    shard: str = "0/1"
    """Which share of the rows, such as 0/4 to 3/4 of four machines."""
    only: tuple[str, ...] = ()
    """Rows to take, by their labels, groups or names; by default all."""
    steps: int | None = None
    """Steps of every tokenizer alike; by default the scale's."""
    generator_steps: int | None = None
    """Steps of every generator alike; by default the scale's."""
    precision: Precision | None = None
    """Of every training alike; by default the scale's."""
    dry_run: bool = False
    """Print the rows, which are finished, and how long training the others takes here; train nothing."""

    def run(self) -> int:
        asked, shard, sources = named_experiment(self.name), _shard(self.shard), self._sources()
        scale = SCALES[self.scale]().adjusted(
            steps=self.steps, generator_steps=self.generator_steps, precision=self.precision
        )
        require_place(self.out)
        if self.dry_run:
            return self._show_plan(asked, scale, sources, shard)
        ending = run_experiment(
            asked,
            scale,
            sources,
            self.out,
            crew=Crew(draw=draw, measure_cost=measure_cost),
            seeds=self.seeds,
            shard=shard,
            only=self.only,
            command=("lgq", *command_line.get()),
        )
        if rank() == 0:
            _report(ending, self.out)
        return ending.exit_code

    def _sources(self) -> Sources:
        data = open_dataset(self.data)
        if self.val_data is None:
            say("no validation data: validating and evaluating on the training images.")
        validation = data if self.val_data is None else open_dataset(self.val_data)
        shown = validation if self.show is None else open_dataset(self.show)
        # All three now, and not after the first row is trained.
        for option, opened in (("--data", data), ("--val-data", validation), ("--show", shown)):
            require_random_access(opened, f"an experiment's {option}")
        named = (self.data, self.val_data or self.data)
        return Sources(
            data=data, validation=validation, named=named, shown=shown, shown_as=self.show or named[1]
        )

    def _show_plan(self, asked: Asked, scale: Scale, sources: Sources, shard: tuple[int, int]) -> int:
        rows = seeded_rows(asked, scale, sources.fingerprint(), self.seeds)
        mine = share_of(chosen(rows, self.only), shard)
        Console().print(_table(asked, estimate_rows(mine, sources, ResultsDirectory(self.out))))
        return 0


def draw(drawable: Drawable) -> dict[str, bytes]:
    """The images that come out best and worst, and the pictures of the codebook's study."""
    shown = draw_extremes(drawable.evaluation.scores, drawable.tokenizer, drawable.data, drawable.image_size)
    return shown | draw_study(drawable.study, method="pca")


def measure_cost(task: CostTask) -> list[dict[str, Any]]:
    """As `lgq bench quantizers`, each in a process of its own; and the networks around them, in this one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = QuantizerBenchmark(
        tokens=task.tokens,
        dim=task.dim,
        sizes=(task.codebook_size,),
        quantizers=(task.quantizer,),
        repeats=task.repeats,
        device=device,
    )
    around = networks_ms(task.around, task.tokens, torch.device(device), repeats=task.repeats)
    return [_with_share(asdict(row), around) for row in run(settings)]


def _with_share(row: dict[str, Any], around: float) -> dict[str, Any]:
    share = None if row["ms"] is None else row["ms"] / around
    return row | {"networks_ms": around, "share_of_step": share}


def _shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise LGQError(f"--shard must be of the form i/n, such as 0/4, got {text!r}.")
    return int(number), int(count)


def _report(ending: Ending, out: Path) -> None:
    for id in ending.failed:
        say(f"{id} failed: see its record in {out / 'rows'}.")
    for id in ending.left:
        say(f"{id} is still in the hands of another process.")
    if ending.exit_code:
        say("stopped; what was finished is kept, and the same command goes on.")
    else:
        say(f"all {ending.rows} rows are finished, {ending.made} of them now: {out}")


def _table(asked: Asked, estimates: list[Estimate]) -> Table:
    paper = f" ({asked.paper})" if asked.paper else ""
    table = Table(title=f"{asked.title}{paper}", caption=_total(estimates), box=box.SIMPLE_HEAD)
    for heading, side in (("row", "left"), ("state", "left"), ("steps", "right"),
                          ("parameters", "right"), ("training", "right")):  # fmt: skip
        table.add_column(heading, justify=side, overflow="fold")  # type: ignore[arg-type]
    for each in estimates:
        table.add_row(
            Text(str(each.row)),
            "finished" if each.finished else "to do",
            f"{each.row.task.steps:,}" if each.row.task.steps else "-",
            f"{each.parameters:,}" if each.parameters else "-",
            "-" if each.seconds is None else _duration(each.seconds),
        )
    return table


def _total(estimates: list[Estimate]) -> str:
    done = sum(each.finished for each in estimates)
    seconds = sum(each.seconds or 0 for each in estimates)
    rest = f"training the others takes about {_duration(seconds)} here"
    return f"{done} of {len(estimates)} rows are finished; {rest}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
