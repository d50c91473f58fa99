"""The runner: every experiment from end to end, and what stays true when it is stopped, shared or killed."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from tiny_experiments import CREW, cheap_judges, experiment, finished, sources_of

from lgq.data import ImageLoader, LoaderSettings, SampleDataset
from lgq.data.tokens import TokenDataset
from lgq.experiments import EXPERIMENTS, SCALES
from lgq.experiments.plan import Experiment, Row, seeded_rows
from lgq.experiments.results_directory import ResultsDirectory, RowsError
from lgq.experiments.runner import run_experiment
from lgq.experiments.workplace import strip_png
from lgq.files import directory_lock
from lgq.metrics.features import FeatureSample
from lgq.training.signals import INTERRUPTED

SMOKE = SCALES["smoke"]()
MOMENTS = {
    "in training": (torch.optim.AdamW, "step"),
    # Validations are part of the training, and have no such sample.
    "in evaluation": (FeatureSample, "update"),
}
"""Calls in which a signal comes."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_from_end_to_end(name, images, shared_out):
    ending = experiment(name, images, shared_out, seeds=1)
    results = ResultsDirectory(shared_out)
    plan = results.plan(name)
    assert (ending.exit_code, ending.left, ending.failed) == (0, [], [])
    assert plan.title == EXPERIMENTS[name].title
    assert len(plan.rows) == len(EXPERIMENTS[name].rows(SMOKE)) == ending.rows
    for row in plan.rows:
        record = results.record(row.id)
        assert (record["id"], record["kind"], record["seed"]) == (row.id, row.kind, 0)
        assert record["metrics"]
        if row.kind == "tokenizer":
            assert (record["steps"], record["images"], record["image_size"]) == (4, 8, 16)
            assert {"psnr", "utilization"} <= record["metrics"].keys()
            assert ("rfid" in record["metrics"]) == (name != "search") == ("rfid" not in record["absent"])
            assert "mutual_information" in record["geometry"]
            assert "lpips" in record["absent"]
            assert (results.pictures(row.id) / "reconstructions.png").is_file()
    assert not experiment(name, images, shared_out, seeds=1).made


def test_rows_that_are_alike_are_trained_once(images, out):
    first = experiment("logits", images, out)
    again = experiment("temperature", images, out, only=["tau-1-0.1-linear"])
    assert (first.made, again.made, again.rows) == (2, 0, 1)
    assert len(list((out / "runs").iterdir())) == 2


def test_a_generator_has_its_tokenizers_row_and_tokens(images, shared_out):
    experiment("generation", images, shared_out, only=["FSQ"])
    results = ResultsDirectory(shared_out)
    record = results.record(next(row.id for row in results.plan("generation").rows if row.row == "fsq"))
    tokenizer = results.record(record["tokenizer"])
    assert record["fingerprint"] == tokenizer["fingerprint"]
    assert record["config"]["tokenizer"]["quantizer"] == "fsq"
    assert {"gfid", "kid"} <= record["metrics"].keys() == record["std"].keys()
    assert record["likelihood"]["nll"] > 0
    assert len(TokenDataset(results.tokens(record["tokenizer"]))) == 12
    assert len(TokenDataset(results.validation_tokens(record["tokenizer"]))) == 8
    assert set(record["shown_classes"]) <= {"cat", "dog"}
    assert (results.pictures(record["id"]) / "samples.png").is_file()


def test_all_rows_show_the_same_images_and_classes(images, shared_out):
    experiment("generation", images, shared_out)
    results = ResultsDirectory(shared_out)
    records = [results.record(row.id) for row in results.plan("generation").rows]
    assert len({tuple(record["shown_classes"]) for record in records}) == 1
    assert len({record["fid"]["reference_sha256"] for record in records}) == 1
    assert results.originals.is_file()


def test_rows_show_the_images_that_were_named(images, out):
    shown = SampleDataset("whole")
    with cheap_judges():
        run_experiment(
            EXPERIMENTS["comparison"], SMOKE, replace(sources_of(images), shown=shown), out, crew=CREW,
            only=["FSQ"],
        )  # fmt: skip
    expected = next(ImageLoader(shown, LoaderSettings(image_size=16, batch_size=8)).one_pass()).images
    assert ResultsDirectory(out).originals.read_bytes() == strip_png(expected)


def test_what_is_finished_is_not_looked_at_again(images, out):
    experiment("logits", images, out, only=["l2"])
    id = next((out / "rows").iterdir()).stem
    ResultsDirectory(out).write_record(id, {"id": id, "metrics": {}, "untouched": True})
    assert experiment("logits", images, out, only=["l2"]).made == 0
    assert ResultsDirectory(out).record(id)["untouched"]


def test_more_seeds_are_more_rows_of_the_same_table(images, out):
    experiment("comparison", images, out, only=["FSQ"], seeds=2)
    experiment("comparison", images, out, only=["FSQ"], seeds=1)
    plan = ResultsDirectory(out).plan("comparison")
    assert plan.seeds == (0, 1)
    assert len(plan.rows) == 14
    records = ResultsDirectory(out).records().values()
    assert sorted(record["seed"] for record in records) == [0, 1]
    assert len({record["fingerprint"] for record in records}) == 2


def test_a_row_in_the_hands_of_another_process_is_left_to_it(images, out, caplog):
    caplog.set_level("INFO", logger="lgq")
    rows = seeded_rows(EXPERIMENTS["logits"], SMOKE, sources_of(images).fingerprint(), 1)
    with directory_lock(ResultsDirectory(out).lock(rows[0].id)):
        ending = experiment("logits", images, out)
    assert (ending.left, ending.made, ending.exit_code) == ([rows[0].id], 1, INTERRUPTED)
    assert "left to another process" in caplog.text
    assert experiment("logits", images, out).exit_code == 0


def test_a_row_that_another_process_let_go_is_taken_at_the_end(images, out):
    rows = seeded_rows(EXPERIMENTS["logits"], SMOKE, sources_of(images).fingerprint(), 1)
    lock = directory_lock(ResultsDirectory(out).lock(rows[0].id))
    lock.__enter__()

    def draw(drawable):
        lock.__exit__(None, None, None)
        return {}

    ending = experiment("logits", images, out, crew=replace(CREW, draw=draw))
    assert (ending.left, ending.made, ending.exit_code) == ([], 2, 0)


def test_a_row_that_diverges_is_recorded_and_the_others_go_on(images, out):
    bad = Row(row="bad", label="bad", task=SMOKE.row(diversity_weight=1e39))
    good = Row(row="good", label="good", task=SMOKE.row("fsq"))
    asked = Experiment(name="mixed", title="", about="", rows=lambda scale: [bad, good])
    ending = experiment(asked, images, out)
    records = ResultsDirectory(out).records()
    assert (ending.made, ending.exit_code, len(records)) == (2, 0, 2)
    assert "is not finite at step 0" in records[ending.failed[0]]["failed"]
    assert records[ending.failed[0]]["config"]["quantizer_options"]["diversity_weight"] == 1e39
    assert experiment(asked, images, out).made == 0


def test_a_generator_of_a_failed_tokenizer_has_failed(images, out):
    task = replace(SMOKE.generated("lgq"), tokenizer=SMOKE.row(diversity_weight=1e39))
    row = Row(row="bad", label="bad", task=task)
    ending = experiment(Experiment(name="mixed", title="", about="", rows=lambda _: [row]), images, out)
    assert "its tokenizer failed" in ResultsDirectory(out).record(ending.failed[0])["failed"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_stops_the_runner_and_the_same_call_goes_on(moment, images, out, monkeypatch):
    undisturbed, stopped = out / "undisturbed", out / "stopped"
    experiment("logits", images, undisturbed)
    with monkeypatch.context() as patch:
        owner, name = MOMENTS[moment]
        plain = getattr(owner, name)

        def signalled(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)
            return plain(*args, **kwargs)

        patch.setattr(owner, name, signalled)
        ending = experiment("logits", images, stopped)
    assert (ending.stopped, ending.exit_code, ending.made) == (True, INTERRUPTED, 0)
    assert not ResultsDirectory(stopped).records()
    assert experiment("logits", images, stopped).made == 2
    assert finished(stopped) == finished(undisturbed)


def test_another_protocol_in_one_directory_is_refused(images, out):
    experiment("logits", images, out, only=["l2"])
    sources, longer = sources_of(images), SMOKE.adjusted(steps=6, generator_steps=None, precision=None)
    for words, name, scale, given in (
        ("steps of logits was 4, now 6", "logits", longer, sources),
        ("scale of logits was smoke, now pocket", "cost", SCALES["pocket"](), sources),
        ("images of logits", "cost", SMOKE, replace(sources, validation=sources.data)),
        (
            "shown of logits was val, now sample:whole",
            "cost",
            SMOKE,
            replace(sources, shown_as="sample:whole"),
        ),
    ):
        with cheap_judges(), pytest.raises(RowsError, match=words):
            run_experiment(EXPERIMENTS[name], scale, given, out, crew=CREW)
    assert set(ResultsDirectory(out).plans()) == {"logits"}
    with cheap_judges():
        run_experiment(EXPERIMENTS["scaling"], longer, sources, out, crew=CREW, only=["lgq-k32"])


def test_rows_are_chosen_by_label_group_or_name(images, out):
    assert experiment("cost", images, out, only=["fsq"]).rows == 2
    assert experiment("cost", images, out, only=["K = 64"]).rows == 2
    assert experiment("cost", images, out, only=["lgq-k8", "SimVQ"]).rows == 3
    with pytest.raises(ValueError, match="no row is called 'lgx': did you mean 'lgq'"):
        experiment("cost", images, out, only=["lgx"])


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
def test_shards_that_do_not_exist_are_refused(shard, images, out):
    with pytest.raises(ValueError, match="shard"):
        experiment("cost", images, out, shard=shard)


def test_a_cost_has_no_seeds(images, out):
    assert experiment("cost", images, out, seeds=3).rows == 17
    record = next(iter(ResultsDirectory(out).records().values()))
    assert record["metrics"] == {"ms": 2.0, "extra_bytes": 64}
    assert record["others"][0]["implementation"] == "dense"
