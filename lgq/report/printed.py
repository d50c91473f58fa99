"""How a table of the paper is written down: its rows, and the experiment of ours that asks the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lgq.report.columns import Column

Printed = float | str | None
"""A number, words in the place of one, or nothing."""


@dataclass(frozen=True)
class PaperRow:
    name: str
    where: Mapping[str, Any]
    """Settings of a run of ours that is this row."""
    values: tuple[Printed, ...]
    """One a column."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviations that the paper gives, by metric."""


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    label: str
    """In the paper's source; or the section in whose text the figures stand."""
    title: str
    about: str
    experiment: str
    """Of ours."""
    columns: tuple[Column, ...]
    rows: tuple[PaperRow, ...]
    only: Mapping[str, Any] = field(default_factory=dict)
    """Settings that runs of ours must have to belong here."""
    by_group: bool = False
    """Whether rows compete for the best of a column within their group of the plan alone."""

    @property
    def sized(self) -> bool:
        """Whether rows are told apart by the size of their codebooks."""
        return any("codebook_size" in row.where for row in self.rows)
