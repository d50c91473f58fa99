"""A finished run: its settings, its numbers, and what follows from its curves."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Where = Mapping[str, Any]
"""Settings that a run must have, by their dotted names."""


@dataclass(frozen=True)
class FinishedRun:
    """A run with its record."""

    record: dict[str, Any]
    journal: tuple[dict[str, Any], ...] = ()
    """Lines of its metrics.jsonl."""
    tokenizer: "FinishedRun | None" = None
    """Of a generator, the run whose tokens it learned."""

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def kind(self) -> str:
        return str(self.record["kind"])

    @property
    def seed(self) -> int | None:
        seed = self.record.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def failed(self) -> str:
        """Why it has no metrics, if its training diverged."""
        return str(self.record.get("failed") or "")

    @property
    def command(self) -> str:
        words = self.record.get("command")
        return shlex.join(map(str, words)) if isinstance(words, list) else ""

    def setting(self, name: str) -> Any:
        """By its dotted name; a generator has those of its tokenizer too."""
        own = within(self.record, f"config.{name}")
        return self.tokenizer.setting(name) if own is None and self.tokenizer else own

    def has(self, where: Where) -> bool:
        return all(self.setting(name) == value for name, value in where.items())

    def value(self, name: str) -> float | None:
        """A finite number: a metric, `geometry.` and one of those, or one of `DERIVED`."""
        if name in DERIVED:
            return DERIVED[name](self)
        group, _, metric = name.rpartition(".")
        if group == "tokenizer":
            return self.tokenizer.value(metric) if self.tokenizer else None
        return finite(within(self.record, f"{group or 'metrics'}.{metric}"))

    def curve(self, metric: str, split: str = "validation") -> dict[int, float]:
        """A value by the step at which the run took it."""
        lines = [line for line in self.journal if line["split"] == split]
        taken = {line["step"]: finite(line["values"].get(metric)) for line in lines}
        return {step: value for step, value in taken.items() if value is not None}


def _active_codes(run: FinishedRun) -> float | None:
    used, codes = run.value("utilization"), finite(run.setting("codebook_size"))
    return None if used is None or codes is None else round(used * codes)


def _seconds_a_step(run: FinishedRun) -> float | None:
    seconds, steps = finite(run.record.get("seconds")), finite(run.record.get("steps"))
    return seconds / steps if seconds and steps else None


def _first_full_step(run: FinishedRun) -> float | None:
    return next((float(step) for step, used in run.curve("utilization").items() if used >= 1), None)


def _first_utilization(run: FinishedRun) -> float | None:
    return next(iter(run.curve("utilization").values()), None)


def _last_utilization(run: FinishedRun) -> float | None:
    return next(reversed(run.curve("utilization").values()), None)


def _utilization_after_full(run: FinishedRun) -> float | None:
    """The least after the first validation at which all codes were in use."""
    full, curve = _first_full_step(run), run.curve("utilization")
    return None if full is None else min(used for step, used in curve.items() if step >= full)


def _last_peak_term(run: FinishedRun) -> float | None:
    return next(reversed(run.curve("quantizer/peak", "train").values()), None)


def _least_diversity_term(run: FinishedRun) -> float | None:
    return min(run.curve("quantizer/diversity", "train").values(), default=None)


def _norm_gap(run: FinishedRun) -> float | None:
    """Above 1 where every live code is longer than every dead one; none where no code is dead."""
    live, dead = run.value("geometry.live_norm_min"), run.value("geometry.dead_norm_max")
    return live / dead if live is not None and dead else None


def _recovered_codes(run: FinishedRun) -> float | None:
    """How many fewer codes are dead at some validation of the second half than at an earlier one of it."""
    dead = list(run.curve("dead_codes").values())
    late = dead[len(dead) // 2 :]
    if len(late) < 2 or not any(late):
        return None
    return max(before - after for i, before in enumerate(late) for after in late[i:])


def _images_a_second(run: FinishedRun) -> float | None:
    """Of a timed quantizer, by the paper's 256 tokens an image."""
    ms, tokens = run.value("ms"), finite(run.setting("tokens"))
    return tokens / 256 / ms * 1e3 if ms and tokens else None


DERIVED: dict[str, Callable[[FinishedRun], float | None]] = {
    "active_codes": _active_codes,
    "seconds_a_step": _seconds_a_step,
    "first_full_step": _first_full_step,
    "first_utilization": _first_utilization,
    "last_utilization": _last_utilization,
    "utilization_after_full": _utilization_after_full,
    "last_peak_term": _last_peak_term,
    "least_diversity_term": _least_diversity_term,
    "norm_gap": _norm_gap,
    "recovered_codes": _recovered_codes,
    "images_a_second": _images_a_second,
}


def within(content: Any, name: str) -> Any:
    """By a dotted name; None where there is nothing."""
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def finite(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
