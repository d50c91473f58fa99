"""Columns of tables: what a metric is called, how it is written, and which way is better."""

from dataclasses import dataclass

from lgq.report.intervals import Better

_ARROWS = {"higher": "↑", "lower": "↓", None: ""}


@dataclass(frozen=True)
class Column:
    metric: str
    """Its name, as `FinishedRun.value` knows it."""
    title: str
    better: Better | None = None
    digits: int = 2
    """After the point."""
    factor: float = 1.0
    """From our records to the paper's unit: 100 for a share that is shown in per cent."""

    @property
    def heading(self) -> str:
        return f"{self.title} {_ARROWS[self.better]}".strip()

    @property
    def direction(self) -> str:
        """The arrow in words, for those who cannot see it."""
        return f"{self.better} is better" if self.better else ""

    def write(self, value: float) -> str:
        """A value of our records, in the unit of the column."""
        return self.write_printed(value * self.factor)

    def write_printed(self, value: float) -> str:
        """A value that is in the unit of the column already."""
        return f"{value:,.{self.digits}f}"


PSNR = Column("psnr", "PSNR", "higher", 3)
SSIM = Column("ssim", "SSIM", "higher", 4)
LPIPS = Column("lpips", "LPIPS", "lower", 4)
LOSS = Column("reconstruction_loss", "Rec. loss", "lower", 4)
L1 = Column("l1", "l1", "lower", 4)
RFID = Column("rfid", "rFID", "lower", 2)
USED = Column("utilization", "Util. %", "higher", 2, 100)
ACTIVE = Column("active_codes", "Active codes", "higher", 0)
PERPLEXITY = Column("perplexity", "Perplexity", "higher", 0)
RECONSTRUCTION = (PSNR, SSIM, LPIPS, LOSS, RFID, USED, PERPLEXITY)

STUDY_USED = Column("geometry.utilization", "Util. %", "higher", 1, 100)
ENTROPY = Column("geometry.normalized_entropy", "H / log K", "higher", 3)
TOP = Column("geometry.top_percent_mass", "Top-1% mass, %", "lower", 1, 100)
TOGETHER = Column("geometry.cooccurrence_density", "Co-occ. %", "higher", 1, 100)
INFORMATION = Column("geometry.mutual_information", "MI (nats)", "higher", 2)
GEOMETRY = (STUDY_USED, ENTROPY, TOP, TOGETHER, INFORMATION)

DEAD = Column("geometry.dead_codes", "Dead codes", None, 0)
SHORTEST_DEAD = Column("geometry.dead_norm_min", "Dead norm, least", None, 3)
LONGEST_DEAD = Column("geometry.dead_norm_max", "Dead norm, most", None, 3)
SHORTEST_LIVE = Column("geometry.live_norm_min", "Live norm, least", None, 3)
LONGEST_LIVE = Column("geometry.live_norm_max", "Live norm, most", None, 3)
CORRELATION = Column("geometry.norm_correlation", "Corr. norm, log usage", None, 3)
NORMS_OVER_STEPS = (
    Column("norm_correlation", "Corr. norm, log usage", None, 3),
    Column("dead_norm_max", "Longest dead code", None, 3),
    Column("live_norm_min", "Shortest live code", None, 3),
)
NORMS = (DEAD, SHORTEST_DEAD, LONGEST_DEAD, SHORTEST_LIVE, LONGEST_LIVE, CORRELATION)

TOKENIZER_RFID = Column("tokenizer.rfid", "rFID of the tokenizer", "lower", 2)
GFID = Column("gfid", "gFID", "lower", 2)
INCEPTION = Column("inception_score", "IS", "higher", 2)

STEP_TIME = Column("seconds_a_step", "Seconds a step", "lower", 3)
COSTS = (
    Column("images_a_second", "Images a second", "higher", 0),
    Column("ms", "ms an iteration", "lower", 2),
    Column("extra_bytes", "Peak memory (MB)", "lower", 1, 1e-6),
    Column("share_of_step", "Of the networks' step, %", "lower", 1, 100),
)
