"""What a training watches in itself: rules over its settings and records, each cause said once.

A rule says what is wrong, the likely causes, and the options to turn. Rules are functions of values that
metrics.jsonl holds, so a resumed run knows from its records what was seen and said before. What was said
about the end of a run is said again about a later end.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lgq.metrics.fid import few_images
from lgq.ops.numerics import lacks_bf16
from lgq.training.settings import TokenizerRun

WARNING = "warning"
"""Split of the records in metrics.jsonl that hold findings."""
UTILIZATION, BATCH_UTILIZATION = "utilization", "batch_utilization"
"""Values that tell the use of codes at a validation and in a training batch; stage i of several adds /i."""

_MEASURES = {"validation": UTILIZATION, "train": BATCH_UTILIZATION}
_FEW, _FALL, _MOST = 0.05, 0.5, 0.5
_FIRST_STEPS = (100, 1_000)  # nothing is judged before a tenth of the run, within these bounds
_UNUSED = "unused_codes"
_WINDOW = 10  # training records: batches differ, while validations see the same images
_REMEDIES = {
    "diversity_weight": "raise",
    "entropy_weight": "raise",
    "restart_below": "raise",
    "latent_weight": "lower",
}
"""Options by which quantizers use more codes, and the direction in which to turn them."""


class Finding(NamedTuple):
    """Something that will probably make a training fail."""

    cause: str
    """Name of the rule, and of the stage that it was found in; each is said once in a run."""
    message: str
    """What was seen, the likely causes, and the options to turn."""


class Watch:
    """Findings about a run, each cause once; without arguments there is nothing to find.

    start: findings about the settings.
    use: the watch over the use of codes, for a tokenizer.
    """

    def __init__(self, start: Sequence[Finding | None] = (), use: "CodeUse | None" = None):
        self._start, self._use = [finding for finding in start if finding is not None], use
        self._said: set[str] = set()

    def replay(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take over what earlier processes of the run have seen and said; foreign records are left out."""
        for record in records:
            split, values = record.get("split"), record.get("values")
            if split == WARNING:
                if self._use is None or not self._use.is_outdated(record):
                    self._said.add(str(record.get("cause")))
            elif isinstance(split, str) and isinstance(values, dict):
                self._look(record["step"], split, values)

    def at_start(self) -> list[Finding]:
        """Return the findings about the settings that were not said yet."""
        return self._news(self._start)

    def look(self, step: int, split: str, values: Mapping[str, Any]) -> list[Finding]:
        """Return what a record shows and was not said yet."""
        return self._news(self._look(step, split, values))

    def _look(self, step: int, split: str, values: Mapping[str, Any]) -> list[Finding]:
        return [] if self._use is None else self._use.look(step, split, values)

    def _news(self, findings: Iterable[Finding]) -> list[Finding]:
        news = [finding for finding in findings if finding.cause not in self._said]
        self._said.update(finding.cause for finding in news)
        return news


class CodeUse:
    """Watch over the use of codes, per stage.

    run: the settings.
    quantizer_options: all options of the quantizer, with their defaults.
    validation_images: number of images per validation.
    """

    def __init__(self, run: TokenizerRun, quantizer_options: Mapping[str, Any], validation_images: int):
        self._run, self._options = run, quantizer_options
        side = run.image_size // run.backbone.factor
        self._levels = len(run.scales) or run.stages
        # The side of each level's grid: a coarse scale has few tokens, which can reach few codes.
        sides = [max(1, round(side * scale / run.scales[-1])) for scale in run.scales] or [side] * run.stages
        images = {UTILIZATION: validation_images, BATCH_UTILIZATION: run.batch_size}
        self._reachable = {
            f"{metric}/{i}" if len(sides) > 1 else metric: min(run.codebook_size, count * level**2)
            for metric, count in images.items()
            for i, level in enumerate(sides)
        }
        least, most = _FIRST_STEPS
        self._first_step = max(least, min(most, run.loop.steps // 10))
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))
        self._best: dict[str, float] = defaultdict(float)

    def look(self, step: int, split: str, values: Mapping[str, Any]) -> list[Finding]:
        """Return what one record shows; nothing in the first tenth of a run, of 100 to 1,000 steps."""
        metric, findings = _MEASURES.get(split), []
        if metric is None or step < self._first_step:
            return []
        for name in [metric] if self._levels == 1 else [f"{metric}/{i}" for i in range(self._levels)]:
            share = self._share(name, metric, values.get(name))
            if share is not None and (finding := self._judge(step, name, share)):
                findings.append(finding)
        return findings

    def is_outdated(self, record: Mapping[str, Any]) -> bool:
        """Tell whether the record of a finding is about the end of a run that has more steps now."""
        return str(record.get("cause")).startswith(_UNUSED) and record.get("step") != self._run.loop.steps

    def _share(self, name: str, metric: str, value: Any) -> float | None:
        """Return the used share of the codes within reach; None until there are batches enough."""
        if not isinstance(value, int | float):
            return None
        if metric == UTILIZATION:
            return value * self._run.codebook_size / self._reachable[name]
        recent = self._recent[name]
        recent.append(value)
        return sum(recent) / _WINDOW if len(recent) == _WINDOW else None

    def _judge(self, step: int, name: str, share: float) -> Finding | None:
        metric, slash, stage = name.partition("/")
        best = self._best[name] = max(self._best[name], share)
        seen = f"{self._describe(name, share)} after step {step:,}"
        if slash:
            level = "scale" if self._run.scales else "stage"
            seen = f"in {level} {int(stage) + 1} of {self._levels}, {seen}"
        if is_collapsed(share, self._reachable[name]):
            return Finding(f"few_codes{slash}{stage}", f"few codes are used: {seen}; {self._way_out(step)}")
        if share < _FALL * best:
            fall = f"fewer and fewer codes are used: {seen}, after {best:.0%} at best"
            return Finding(f"falling_use{slash}{stage}", f"{fall}; {self._way_out(step)}")
        if share < _MOST and metric == UTILIZATION and step == self._run.loop.steps:
            short = f"a run that is too short (raise `steps`, now {step:,})"
            unused = f"most codes are still unused at the end: {seen}"
            return Finding(f"{_UNUSED}{slash}{stage}", f"{unused}; {self._way_out(step, short)}")
        return None

    def _describe(self, name: str, share: float) -> str:
        codes, reachable = self._run.codebook_size, self._reachable[name]
        who = "the validation images use" if name.startswith(UTILIZATION) else "a training batch uses"
        limit = "" if reachable == codes else " that so few tokens can reach"
        return f"{who} {share * reachable:,.0f} of {reachable:,} codes{limit} ({share:.1%})"

    def _way_out(self, step: int, *causes: str) -> str:
        """Return these and other likely causes after so many steps, each with the option to turn."""
        run, likely = self._run, list(causes)
        likely.append(f"a learning rate that is too high (lower `learning_rate`, now {run.learning_rate:g})")
        if run.loss.gan and step > run.loss.discriminator_start:
            likely.append(f"a GAN term that is too strong (lower `loss.gan`, now {run.loss.gan:g})")
        if remedies := quantizer_remedies(self._options):
            likely.append(f"a quantizer that spreads its codes too little (`quantizer_options`: {remedies})")
        likely.append(f"more codes than the data need (lower `codebook_size`, now {run.codebook_size:,})")
        return f"likely causes: {', '.join(likely[:-1])}, or {likely[-1]}."


def quantizer_remedies(options: Mapping[str, Any]) -> str:
    """Say which of a quantizer's options to turn so that it uses more codes; empty if none would help."""
    remedies = []
    for name, turn in _REMEDIES.items():
        # What is off already cannot be lowered.
        if name in options and (turn == "raise" or options[name]):
            turn = "set" if options[name] is None else turn
            remedies.append(f"{turn} {name}, now {options[name]}")
    return "; ".join(remedies)


def is_collapsed(share: float, reachable: int) -> bool:
    """Tell whether less than 5% of the codes within reach are used, or one code of several."""
    return reachable > 1 and (share < _FEW or share * reachable <= 1)


def idle_discriminator(run: TokenizerRun) -> Finding | None:
    """Find a discriminator that would join after the last step."""
    start, steps = run.loss.discriminator_start, run.loop.steps
    if not run.loss.gan or start < steps:
        return None
    return Finding(
        "idle_discriminator",
        f"the discriminator never trains: it joins at step {start:,} (`loss.discriminator_start`), and the "
        f"run ends after {steps:,} steps (`steps`, `epochs`); lower the one, raise the other, or train "
        "without a discriminator (`loss.gan` 0).",
    )


def slow_precision(run: TokenizerRun, device: torch.device) -> Finding | None:
    """Find a precision for which the processor has no instructions."""
    of_lpips = run.loss.lpips_precision if run.loss.lpips else "float32"
    if "bf16" not in (run.precision, of_lpips) or not lacks_bf16(device):
        return None
    return Finding(
        "slow_precision",
        "this processor has no instructions for bf16, and takes several times as long as with float32: "
        "begin the run with `precision` float32 and `loss.lpips_precision` float32.",
    )


def unreliable_rfid(images: int, features: int) -> Finding | None:
    """Find validations with too few images for an rFID; 0 images for validations without one."""
    problem = few_images("rFID", images, features) if images else None
    if problem is None:
        return None
    way_out = "raise `validation_images` (and `rfid_images`), or choose `best_by` lpips or l1"
    return Finding("few_images", f"{problem}; {way_out}.")
