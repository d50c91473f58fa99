"""History of a run: the weights that it began with, and the changes of its length.

    History(extensions=(Extension(step=150, planned=150, steps=300),)).progress(160, 300)        # 1.0

A run whose length changes follows the schedules of its new length from there on, as if that had been planned
from the start, except that nothing that anneals goes back: a temperature waits until the new schedule has
come down to it. So the weights depend only on the settings and on this history, not on restarts.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lgq.config import from_json, to_json
from lgq.errors import LGQError
from lgq.hub import HubModel


@dataclass(frozen=True, kw_only=True)
class StartFrom:
    """Trained weights that a new run began with."""

    source: str
    """What the user named: a run directory, a saved directory, or owner/name on the Hub."""
    fingerprint: str
    """The sha256 over settings and weights of the model (`fingerprint()`)."""
    parts: tuple[str, ...]
    """Parts of the model that were taken; the others start untrained."""

    def __str__(self) -> str:
        return f"{self.source} (sha256 {self.fingerprint[:12]}): {', '.join(self.parts)}"

    @classmethod
    def named(cls, source: HubModel | str | Path) -> "StartFrom":
        """Name a source without loading it; it need not exist."""
        fingerprint = source.fingerprint() if isinstance(source, HubModel) else ""
        return cls(source=source_name(source), fingerprint=fingerprint, parts=())

    def is_same(self, other: "StartFrom") -> bool:
        """Tell whether two are the same source, by their fingerprints where both are known."""
        if self.fingerprint and other.fingerprint:
            return self.fingerprint == other.fingerprint
        return Path(self.source).resolve() == Path(other.source).resolve()


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A change of a run's length: after `step` steps, of `planned` ones, it got `steps`, mostly more."""

    step: int
    planned: int
    steps: int

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps instead of {self.planned:,}: from step {self.step:,} on, learning rate "
            f"and temperature follow schedules of {self.steps:,} steps, and no temperature goes back up"
        )


@dataclass(frozen=True, kw_only=True)
class History:
    """What the weights of a run depend on besides its settings."""

    start_from: StartFrom | None = None
    extensions: tuple[Extension, ...] = ()
    """Changes of length, in their order."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> "History":
        """Read the history in a run's config.json."""
        return from_json(cls, {name: config[name] for name in HISTORY_FIELDS if name in config})

    def described(self) -> dict[str, Any]:
        """Return what config.json says of it: nothing for a run that just trained."""
        return {name: value for name, value in to_json(self).items() if value}

    def notes_at(self, step: int) -> list[dict[str, Any]]:
        """Return what metrics.jsonl notes at a step."""
        begun = step == 0 and self.start_from is not None
        notes = [{"start_from": to_json(self.start_from)}] if begun else []
        return notes + [{"extension": to_json(extension)} for extension in self.extensions_at(step)]

    def extensions_at(self, step: int) -> list[Extension]:
        return [extension for extension in self.extensions if extension.step == step]

    def progress(self, step: int, steps: int) -> float:
        """Return the share of annealing at a step of a run that has `steps` in all, from 0 to 1."""
        reached = (_share(extension.step - 1, extension.planned) for extension in self.extensions)
        return max(_share(step, steps), *reached, 0.0)

    def continued(self, run: Path, *, step: int, planned: int, steps: int) -> "History":
        """Add a change of length after `step` steps, if there is one; refuses one to no more than these."""
        if steps == planned:
            return self
        if steps <= step:
            raise LGQError(
                f"{run} has done {step:,} of its {planned:,} steps, and `steps` {steps} asks for no more: "
                f"choose more than {step:,}, or another `out` for a new run."
            )
        extension = Extension(step=step, planned=planned, steps=steps)
        return replace(self, extensions=(*self.extensions, extension))

    def require_start(self, run: Path, asked: StartFrom | None) -> None:
        """Refuse to continue a run as if it had begun with other weights; not to ask for any is fine."""
        if asked is None or (self.start_from is not None and self.start_from.is_same(asked)):
            return
        was = "random weights" if self.start_from is None else self.start_from.source
        raise LGQError(
            f"{run} began with other weights: `start_from` (was {was}, now {asked.source}); leave "
            "`start_from` out to continue this run, or choose another `out` for a new one."
        )


HISTORY_FIELDS = tuple(field.name for field in fields(History))
"""Fields of config.json that are history."""


def source_name(source: HubModel | str | Path) -> str:
    """Return what config.json calls a source of weights."""
    return "a model in memory" if isinstance(source, HubModel) else str(source)


def require_same_network(
    source: str, network: str, here: dict[str, Any], there: dict[str, Any], *, but: tuple[str, ...]
) -> None:
    """Refuse weights of a network with other settings, except those that weights do not depend on."""
    names = [name for name in here if name not in but and here[name] != there[name]]
    if names:
        differences = ", ".join(f"{name} (there {there[name]}, here {here[name]})" for name in names)
        options = (f"`{network}.{name}` {_words(there[name])}" for name in names)
        raise LGQError(
            f"cannot start from {source}, as its {network} has other {differences}: "
            f"train with {' '.join(options)}, or start from weights of this {network}."
        )


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _share(step: int, steps: int) -> float:
    return min(1.0, step / max(1, steps - 1))
