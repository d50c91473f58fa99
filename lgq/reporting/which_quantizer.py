"""Which quantizer should I use? One page, with four figures and advice, from the records of experiments.

`scripts/write_results.py` writes docs/which-quantizer.md and its picture with these functions. Every sentence
and every line stands on records; what was not run, or with an earlier protocol, is left out. Each sentence
that ranks quantizers also has LGQ's place and figure.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from lgq.experiments.scales import GAUSSIAN_DIM
from lgq.experiments.tables import BEST_LABEL
from lgq.plots.canvas import FAINT, figure_png, panel_figure
from lgq.plots.palette import styles_of
from lgq.quantizers import QUANTIZERS
from lgq.reporting.result_set import ResultSet, RunRecord, Sample, compare_samples, sample_of

_LEGEND_COLUMNS = 5
_WELL_USED = 0.9
"""Share of the codes from which on a codebook counts as used."""
_STARTED = ("tokenizer", "latents")
"""Kinds of runs that name their start in the present protocol."""

HEAD = """\
# Which quantizer should I use?

Written by `python scripts/write_results.py` from the [committed records](results/README.md); `lgq experiment`
makes the same for your data. Quantizers have their published settings unless a line says otherwise.

![Quality, use of codes and cost over the size of the codebook, and use of codes on shifted data]\
(images/which-quantizer.png)
"""


class Panel(NamedTuple):
    """A small figure: a metric over an axis, one line per quantizer."""

    title: str
    experiment: str
    metric: str
    axis: str
    """Setting along the axis."""
    label: str
    factor: float = 1.0
    logarithmic: bool = False
    """Whether the metric has a logarithmic axis."""


PANELS = (
    Panel("Quality: LPIPS, lower is better", "codebook-size", "lpips", "codebook_size", "codes"),
    Panel("Codes used, %", "codebook-size", "utilization", "codebook_size", "codes", 100),
    Panel("Cost: ms per step", "cost", "ms", "codebook_size", "codes", 1, logarithmic=True),
    Panel("Codes used on shifted data, %", "gaussian", "utilization", "mean", "mean of the data", 100),
)


def samples_over(
    results: ResultSet, experiment: str, metric: str, axis: str, *, best: bool = False
) -> dict[str, dict[float, Sample]]:
    """Return a metric over seeds, by quantizer and by the value of a setting.

    best: take the rows with the best options of the search, not those as published.

    Timings of a busy machine are left out.
    """
    found: dict[str, dict[float, list[RunRecord]]] = {}
    for row, runs in results.rows(experiment):
        if row.label.endswith(BEST_LABEL) != best:
            continue
        for run in runs:
            name, place = run.setting("quantizer"), run.setting(axis)
            earlier = run.kind in _STARTED and "start" not in run.record
            if name in QUANTIZERS and isinstance(place, int | float) and not run.failed and not earlier:
                found.setdefault(str(name), {}).setdefault(float(place), []).append(run)
    lines = {
        name: {
            place: sample
            for place in sorted(runs)
            if (sample := sample_of(runs[place], metric)) and not sample.busy
        }
        for name, runs in found.items()
    }
    return {name: points for name, points in lines.items() if points}


def largest_only(results: ResultSet) -> ResultSet:
    """Return the results with only the largest codebook of the experiment on Gaussians."""
    plan = results.plans.get("gaussian")
    runs = {row.id: results.runs[row.id] for row in plan.rows if row.id in results.runs} if plan else {}
    if not plan or not runs:
        return results
    largest = max(int(run.setting("codebook_size")) for run in runs.values())
    rows = [row for row in plan.rows if row.id in runs and runs[row.id].has({"codebook_size": largest})]
    return replace(results, plans=results.plans | {"gaussian": replace(plan, rows=tuple(rows))})


def picture(results: ResultSet) -> bytes:
    """Draw the four panels; a panel without records says so."""
    results = largest_only(results)
    figure, panels = panel_figure(len(PANELS), (4.4, 3.2))
    styles = styles_of(QUANTIZERS)
    shown: dict[str, Any] = {}
    for panel, axes in zip(PANELS, panels, strict=True):
        experiment = _sweep(results) if panel.experiment == "codebook-size" else panel.experiment
        lines = samples_over(results, experiment, panel.metric, panel.axis)
        axes.set_title(f"{panel.title}{_codes_of(results, panel)}", loc="left")
        axes.set_xlabel(panel.label)
        if not lines:
            earlier = any(runs for _, runs in results.rows(experiment))
            reason = "only runs of an earlier protocol" if earlier else "not run yet"
            axes.annotate(reason, (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT)
            axes.set(xticks=[], yticks=[])
            continue
        places = _places(lines)
        for name, points in lines.items():
            label, look = QUANTIZERS[name].label, styles[name]
            # A panel with one place has a column for each quantizer in place of its axis.
            along = [label] if len(places) == 1 else list(points)
            values = [panel.factor * sample.mean for sample in points.values()]
            (line,) = axes.plot(along, values, color=look.light, marker=look.marker, linewidth=2)
            shown.setdefault(label, line)
        if len(places) == 1:
            axes.set_xlabel(f"at {places[0]:,.0f} {panel.label}")
            axes.tick_params("x", labelrotation=40, labelsize=8)
            axes.set_yscale("log" if panel.logarithmic else "linear")
            axes.margins(0.08, 0.15)
        else:
            _scale(axes, panel, places)
    if shown:
        figure.legend(shown.values(), shown, loc="outside lower center", frameon=False, ncols=_LEGEND_COLUMNS)
    return figure_png(figure)


def _codes_of(results: ResultSet, panel: Panel) -> str:
    """The number of codes of a panel whose axis is another setting, such as ", 16,384 codes"."""
    runs = [run for _, runs in results.rows(panel.experiment) for run in runs]
    sizes = {run.setting("codebook_size") for run in runs} if panel.axis != "codebook_size" else set()
    return f", {sizes.pop():,} codes" if len(sizes) == 1 else ""


def _scale(axes: Axes, panel: Panel, places: list[float]) -> None:
    if panel.axis == "codebook_size":
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{place:,.0f}" for place in places]))
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def advice(results: ResultSet) -> list[str]:
    """Return sentences of advice, those that the records can support."""
    makers: tuple[Callable[[ResultSet], str | None], ...] = (
        lambda r: _best_quality(r, largest=True),
        lambda r: _best_quality(r, largest=False),
        _well_used,
        _cheapest,
        _cold,
        _shifted,
        _shifted_error,
        _regularizers,
        _tuned,
        _alone,
        _limits,
    )
    return [text for make in makers if (text := make(results))]


def page(results: ResultSet) -> str:
    lines = "".join(f"- {line}\n" for line in advice(results))
    return f"{HEAD}\n{lines}"


def _ranked(samples: dict[str, Sample], *, higher: bool) -> list[tuple[str, Sample]]:
    return sorted(samples.items(), key=lambda item: item[1].mean, reverse=higher)


def _lgq(ranked: list[tuple[str, Sample]], form: str, skip: Iterable[str] = ()) -> str:
    """LGQ's place and mean, such as "; LGQ is 6 of 9 (36.04)"; empty where a sentence has it already.

    skip: names that the sentence has.
    """
    samples = dict(ranked)
    if "lgq" not in samples or "lgq" in skip:
        return ""
    higher = ranked[0][1].mean > ranked[-1][1].mean
    return f"; LGQ is {_place(samples, higher=higher)} ({samples['lgq'].mean:{form}})"


def _place(samples: dict[str, Sample], *, higher: bool) -> str:
    """LGQ's place by its mean, such as "6 of 9"; equal means share one."""
    means, own = [sample.mean for sample in samples.values()], samples["lgq"].mean
    return f"{1 + sum(mean > own if higher else mean < own for mean in means)} of {len(means)}"


def _names(names: Iterable[str]) -> str:
    labels = [QUANTIZERS[name].label for name in names]
    return f"{', '.join(labels[:-1])} and {labels[-1]}" if len(labels) > 1 else "".join(labels)


def _at(lines: dict[str, dict[float, Sample]], place: float) -> dict[str, Sample]:
    return {name: points[place] for name, points in lines.items() if place in points}


def _places(lines: dict[str, dict[float, Sample]]) -> list[float]:
    return sorted({place for points in lines.values() for place in points})


def _sweep(results: ResultSet) -> str:
    """The experiment over codebook sizes, or the comparison at one size where it has no runs."""
    swept = samples_over(results, "codebook-size", "utilization", "codebook_size")
    return "codebook-size" if swept else "comparison"


def _best_quality(results: ResultSet, *, largest: bool) -> str | None:
    lines = samples_over(results, _sweep(results), "lpips", "codebook_size")
    places = _places(lines)
    if not places or (len(places) == 1 and not largest):
        return None
    place = places[-1 if largest else 0]
    ranked = _ranked(_at(lines, place), higher=False)
    (first, best), rest = ranked[0], ranked[1:]
    level = [name for name, sample in rest if compare_samples(best, sample, "lower") <= 0]
    ahead = ", ahead of all others" if rest else ", the only one that was run"
    alike = f"; {_names(level)} cannot be told from it" if level else ahead
    own = _lgq(ranked, ".3f", [first])
    for metric, title in (("psnr", "PSNR"), ("rfid", "rFID")):
        samples = _at(samples_over(results, _sweep(results), metric, "codebook_size"), place)
        if "lgq" in samples:
            own += f"; by {title} LGQ is {_place(samples, higher=metric == 'psnr')}"
    return f"**{place:,.0f} codes**: {_names([first])} has the best LPIPS ({best.mean:.3f}){alike}{own}."


def _well_used(results: ResultSet) -> str | None:
    lines = samples_over(results, _sweep(results), "utilization", "codebook_size")
    places = _places(lines)
    if not places:
        return None
    at_largest = _ranked(_at(lines, places[-1]), higher=True)
    good = [name for name, sample in at_largest if sample.mean >= _WELL_USED]
    worst, least = at_largest[-1]
    verb = "uses" if len(good) == 1 else "use"
    who = f"{_names(good)} {verb} 90% of the codes or more" if good else "no quantizer uses 90% of the codes"
    own = _lgq(at_largest, ".0%", [worst])
    return (
        f"**Codes in use** ({places[-1]:,.0f} codes): {who}; {_names([worst])} uses the fewest "
        f"({least.mean:.0%}){own}."
    )


def _cheapest(results: ResultSet) -> str | None:
    lines = samples_over(results, "cost", "ms", "codebook_size")
    common = [place for place in _places(lines) if len(_at(lines, place)) == len(lines)]
    if not common:
        return None
    ranked = _ranked(_at(lines, common[-1]), higher=False)
    (first, low), (last, high) = ranked[0], ranked[-1]
    ratio = f"{high.mean / low.mean:,.0f} times"
    samples, own = dict(ranked), ""
    if "lgq" in samples and first != "lgq":
        ms = samples["lgq"].mean
        to_vq = f" and {ms / samples['vq'].mean:,.1f} times VQ's" if "vq" in samples else ""
        own = f"; LGQ takes {ms:,.0f} ms, {ms / low.mean:,.0f} times the least{to_vq}"
    return (
        f"**Cost** of the quantizer alone: at {common[-1]:,.0f} codes {_names([first])} takes the least time "
        f"per step ({low.mean:.1f} ms), {_names([last])} the most ({ratio} that){own}."
    )


def _cold(results: ResultSet) -> str | None:
    cold = samples_over(results, "cold", "psnr", "codebook_size")
    warm = samples_over(results, "codebook-size", "psnr", "codebook_size")
    losses = {
        name: sample.mean - warm[name][place].mean
        for name, points in cold.items()
        for place, sample in points.items()
        if place in warm.get(name, {})
    }
    if len(losses) < 2:
        return None
    ranked = sorted(losses, key=losses.__getitem__, reverse=True)
    own = ""
    if "lgq" in ranked[1:-1]:
        own = f"; LGQ loses {-losses['lgq']:.1f} dB, {ranked.index('lgq') + 1} of {len(ranked)}"
    return (
        f"**From scratch**, without a trained autoencoder to start from, {_names(ranked[:1])} loses the "
        f"least ({-losses[ranked[0]]:.1f} dB) and {_names(ranked[-1:])} the most "
        f"({-losses[ranked[-1]]:.1f} dB){own}."
    )


def _shifted(results: ResultSet) -> str | None:
    lines = samples_over(largest_only(results), "gaussian", "utilization", "mean")
    places = _places(lines)
    if len(places) < 2:
        return None
    ranked = _ranked(_at(lines, places[-1]), higher=True)
    kept = [name for name, sample in ranked if sample.mean >= 0.5]
    lost = [name for name, sample in ranked if sample.mean < 0.05]
    verb = "uses" if len(kept) == 1 else "use"
    kept_words = f"{_names(kept)} still {verb} half of the codes or more"
    parts = [kept_words if kept else "no quantizer uses half of the codes"]
    parts += [f"{_names(lost)} less than 5%"] if lost else []
    return (
        f"**Data away from the initial codes** ({_vectors(results)}, mean {places[-1]:g}, deviation 1): "
        f"{', '.join(parts)}"
        f"{_lgq_over_means(lines, '.1%', higher=True)}. Put a normalization before the quantizer, or start "
        "the codes at the data."
    )


def _shifted_error(results: ResultSet) -> str | None:
    lines = samples_over(largest_only(results), "gaussian", "mse", "mean")
    places = _places(lines)
    if len(places) < 2:
        return None
    ranked = _ranked(_at(lines, places[-1]), higher=False)
    (first, low), (last, high) = ranked[0], ranked[-1]
    return (
        f"**Error of these vectors** (mean squared error, {_vectors(results)}, mean {places[-1]:g}): "
        f"{_names([first])} "
        f"has the lowest ({low.mean:.2f}), {_names([last])} the highest ({high.mean:.2f})"
        f"{_lgq_over_means(lines, '.2f', higher=False)}."
    )


def _vectors(results: ResultSet) -> str:
    """The problem of the experiment on Gaussians, such as "16,384 codes of 8 channels"."""
    runs = largest_only(results).select("gaussian")
    return f"{runs[0].setting('codebook_size'):,} codes of {GAUSSIAN_DIM} channels"


def _lgq_over_means(lines: dict[str, dict[float, Sample]], form: str, *, higher: bool) -> str:
    """LGQ's figure and place at every mean, such as "; LGQ: 99.5% at mean 0 (1 of 9), 5.9% at mean 2 ..."."""
    parts = [
        f"{sample.mean:{form}} at mean {place:g} ({_place(_at(lines, place), higher=higher)})"
        for place, sample in lines.get("lgq", {}).items()
    ]
    return f"; LGQ: {', '.join(parts)}" if parts else ""


def _regularizers(results: ResultSet) -> str | None:
    by_weight: dict[float, list[RunRecord]] = {}
    for run in results.select("regularizers"):
        peak, diversity = (run.setting(f"quantizer_options.{name}_weight") for name in ("peak", "diversity"))
        if peak == diversity and "start" in run.record:
            by_weight.setdefault(float(peak), []).append(run)
    used = {weight: sample for weight in by_weight if (sample := sample_of(by_weight[weight], "utilization"))}
    if len(used) < 2:
        return None
    low, high = min(used), max(used)
    return (
        f"**LGQ's weights** decide its use in a short run: {used[low].mean:.0%} of the codes with both at "
        f"{low:g}, {used[high].mean:.0%} with both at {high:g}."
    )


def _tuned(results: ResultSet) -> str | None:
    published = samples_over(results, "comparison", "lpips", "codebook_size")
    best = samples_over(results, "comparison", "lpips", "codebook_size", best=True)
    gains = {
        name: published[name][place].mean - sample.mean
        for name, points in best.items()
        for place, sample in points.items()
        if place in published.get(name, {})
    }
    if not gains:
        return None
    most = max(gains, key=gains.__getitem__)
    own = f"; that of LGQ changes by {-gains['lgq']:+.3f}" if "lgq" in gains and most != "lgq" else ""
    return f"**A small search** helps {_names([most])} the most: its LPIPS falls by {gains[most]:.3f}{own}."


def _alone(results: ResultSet) -> str | None:
    lines = samples_over(results, "latents", "mse", "codebook_size")
    places = _places(lines)
    if not places:
        return None
    ranked = _ranked(_at(lines, places[-1]), higher=False)
    ends = [ranked[0][0], ranked[-1][0]]
    return (
        f"**Behind an encoder that you cannot train**, {_names(ends[:1])} represents the latents best "
        f"with {places[-1]:,.0f} codes, {_names(ends[1:])} worst{_lgq(ranked, '.3f', ends)}."
    )


def _limits(results: ResultSet) -> str | None:
    scales = {plan.scale for plan in results.plans.values()}
    if "imagenet256" in scales:
        return None
    return (
        "**What this does not say**: images are small and runs are short here. After days of training, "
        "quality may be ordered otherwise."
    )
