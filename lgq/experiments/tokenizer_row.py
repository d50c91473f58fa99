"""A tokenizer's row: train, evaluate the best weights as `lgq evaluate` does, study the codebook, draw."""

import logging
from typing import Any

from lgq.data.images import random_subset
from lgq.distributed import rank
from lgq.evaluation import evaluate_tokenizer
from lgq.experiments.tasks import TokenizerTask
from lgq.experiments.workplace import Drawable, Stopped, Workplace, strip_png
from lgq.hub import run_settings
from lgq.metrics.codebook_study import study_codebook
from lgq.metrics.metric_networks import NEED_INCEPTION, NEED_LPIPS, MetricNetworks
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.journal import read_records
from lgq.training.loop import DivergedError
from lgq.training.settings import Outcome
from lgq.training.tokenizer_trainer import train_tokenizer

_log = logging.getLogger(__name__)

_NO_JUDGES = MetricNetworks(
    absent=dict.fromkeys((*NEED_LPIPS, *NEED_INCEPTION), "this row is judged without networks")
)


def tokenizer_record(work: Workplace, task: TokenizerTask, id: str) -> dict[str, Any]:
    """The record of a trained and evaluated tokenizer; of one that diverged, with `failed`."""
    sources, out = work.sources, work.results.run(id)
    data = sources.data if task.images is None else random_subset(sources.data, task.images)
    try:
        outcome = train_tokenizer(task.run, data, sources.validation, out)
    except DivergedError as error:
        _log.warning("%s failed: %s", id, error)
        return work.origin(task, id) | {"config": run_settings(out), "metrics": {}, "failed": str(error)}
    if outcome.reason == "interrupted":
        raise Stopped
    tokenizer = load_tokenizer(out).to(work.device)
    return (
        work.origin(task, id)
        | training_part(work, id, outcome)
        | {"parameters": tokenizer.parameter_counts(), "fingerprint": tokenizer.fingerprint()}
        | _evaluated(work, tokenizer, task, id)
    )


def training_part(work: Workplace, id: str, outcome: Outcome) -> dict[str, Any]:
    """What a record says of a run."""
    run = work.results.run(id)
    records = read_records(run) if rank() == 0 else []
    return {
        "config": run_settings(run),
        "steps": outcome.step,
        "best_step": outcome.best_step,
        "ended": outcome.reason,
        "seconds": records[-1]["seconds"] if records else None,
    }


def _evaluated(work: Workplace, tokenizer: Tokenizer, task: TokenizerTask, id: str) -> dict[str, Any]:
    image_size, judges = task.run.image_size, work.judges if task.judged else _NO_JUDGES
    _log.info("evaluating %s on %s images", id, f"{len(work.evaluated):,}")
    evaluation = evaluate_tokenizer(
        tokenizer, work.evaluated, judges, image_size=image_size, on_progress=work.go_on
    )
    study = study_codebook(tokenizer, work.studied, image_size=image_size, on_progress=work.go_on)
    if rank() == 0:
        drawn = work.crew.draw(Drawable(tokenizer, evaluation, study, work.evaluated, image_size))
        shown = tokenizer.decode(tokenizer.encode(work.shown.to(work.device)))
        work.results.write_pictures(id, drawn | {"reconstructions": strip_png(shown)})
        work.keep_originals()
    return (
        {"data": repr(work.evaluated), "image_size": image_size}
        | evaluation.record()
        | {
            "geometry": study.metrics,
            "geometry_images": study.images,
            "absent": study.absent | evaluation.absent,
        }
    )
