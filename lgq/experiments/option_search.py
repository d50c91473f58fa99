"""The search for the strength of each quantizer: which options are tried, and which are best.

    python scripts/write_best_options.py RESULTS

The best options of a scale are in `lgq/best_options.json`, from which named runs and tables take them.
"""

from typing import Any

from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.scales import named_scale
from lgq.results import ResultsError
from lgq.tokenizer import default_options

MEASURE = "reconstruction_loss"
"""Metric whose lowest value is best: l1 + LPIPS, what the networks are trained for."""


def search_grid(quantizer: str, codebook_size: int) -> list[dict[str, Any]]:
    """Return the options of a quantizer that the search tries; the published ones are the first."""
    revival = {"init": "kmeans", "restart_below": 0.5}
    grids: dict[str, list[dict[str, Any]]] = {
        "lgq": [{"peak_weight": 0.005 * times, "diversity_weight": 0.005 * times} for times in (3, 10, 30)],
        "ibq": [{"entropy_weight": 0.5}, {"init_std": 0.125}, {"entropy_weight": 0.5, "init_std": 0.125}],
        "lfq": [{"entropy_weight": weight} for weight in (0.03, 0.3, 1.0)],
        "simvq": [{"weight": weight} for weight in (1.0, 3.0, 30.0)],
        "vq": [{"decay": 0.8}, {"commitment_weight": 1.0}, revival],
        "rotvq": [{"decay": 0.99}, {"commitment_weight": 0.25}, revival],
        "diveq": [{"restart_below": 0.5}, {"init": "kmeans"}, revival],
        "wasserstein": [{"matching_weight": weight} for weight in (0.1, 2.0, 10.0)],
        "bsq": [{"entropy_weight": weight} for weight in (0.03, 0.3, 1.0)],
        "fsq": [{"levels": _levels(codebook_size, bits)} for bits in (1, 2, 4)],
    }
    return [{}, *grids.get(quantizer, [])]


def _levels(codebook_size: int, bits: int) -> tuple[int, ...]:
    """Return levels of FSQ with so many bits per channel, and the rest in the last one."""
    full, rest = divmod(codebook_size.bit_length() - 1, bits)
    return (2**bits,) * full + ((2**rest,) if rest else ())


def choose_options(results: ResultsDirectory) -> dict[str, Any]:
    """Return the best options by scale and quantizer, with the run behind each; of finished searches only.

    Where the published options are best, these are the quantizer's own, and `options` is empty.
    """
    plan = results.plan("search")
    if plan is None:
        raise ResultsError(f"{results.root} has no search: run `lgq experiment search` first.")
    records = {row: record for row in plan.rows if (record := results.record(row.id))}
    if missing := [row.row for row in plan.rows if row not in records]:
        raise ResultsError(
            f"{results.root} has {len(missing)} rows of the search to do, such as {missing[0]}: run "
            "`lgq experiment search` again."
        )
    best: dict[tuple[str, int], tuple[float, str, dict[str, Any]]] = {}
    for row, record in records.items():
        config, score = record["config"], record["metrics"].get(MEASURE)
        if score is None:  # its training diverged
            continue
        name, size = config["quantizer"], config["codebook_size"]
        defaults = default_options(name)
        options = {
            option: value
            for option, value in config["quantizer_options"].items()
            if option != "seed" and value != defaults[option]
        }
        if (name, size) not in best or score < best[name, size][0]:
            best[name, size] = (score, row.id, options)
    chosen: dict[str, Any] = {}
    for (name, size), (score, id, options) in sorted(best.items()):
        entry = {"codebook_size": size, "options": options, "run": id, MEASURE: score}
        chosen.setdefault(name, []).append(entry)
    return {named_scale(plan.scale).name: chosen}
