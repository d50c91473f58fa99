"""The runner: every experiment from end to end, and what stays true when it is stopped, shared or killed."""

import os
import signal
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from tiny_experiments import SMOKE, finished, run_tiny, sources_of

import lgq.experiments.records as records_module
from lgq.data import FolderDataset, ImageLoader, LoaderSettings, SampleDataset
from lgq.data.images import Subset
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError
from lgq.experiments.plan import Experiment, Row, open_sources, plan_rows, run_id
from lgq.experiments.records import measure_cost, strip_png
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.scales import named_scale
from lgq.experiments.tables import EXPERIMENTS
from lgq.files import directory_lock
from lgq.metrics.features import FeatureSample
from lgq.quantizers import QUANTIZERS
from lgq.results import ResultsError
from lgq.tokenizer import load_tokenizer
from lgq.training.loop import INTERRUPTED


def table_of(*tasks) -> Experiment:
    rows = [Row(row=f"row-{i}", label=f"row {i}", task=task) for i, task in enumerate(tasks)]
    return Experiment(name="mixed", title="", rows=lambda scale: rows)


def tokenizer_records(out) -> list:
    return [record for record in ResultsDirectory(out).records().values() if record["kind"] == "tokenizer"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_from_end_to_end(name, images, shared_out):
    outcome = run_tiny(name, images, shared_out, seeds=1)
    results = ResultsDirectory(shared_out)
    plan = results.plans()[name]
    assert (outcome.exit_code, outcome.busy, outcome.failed) == (0, [], [])
    assert (plan.title, plan.about) == (EXPERIMENTS[name].title, EXPERIMENTS[name].about)
    assert len(plan.rows) == len(EXPERIMENTS[name].rows(SMOKE)) == outcome.rows
    for row in plan.rows:
        record = results.record(row.id)
        seed = EXPERIMENTS[name].first_seed
        assert (record["id"], record["kind"], record["seed"]) == (row.id, row.kind, seed)
        assert record["metrics"]
        if row.kind == "autoencoder":
            assert record["config"]["quantizer"] == "none"
            assert "psnr" in record["metrics"]
        if row.kind == "tokenizer":
            assert (record["steps"], record["images"], record["image_size"]) == (4, 4, 16)
            assert record["bootstrap_std"].keys() == ({"rfid", "kid"} if name != "search" else set())
            assert {"psnr", "utilization"} <= record["metrics"].keys()
            assert ("rfid" in record["metrics"]) == (name != "search") == ("rfid" not in record["absent"])
            assert "mutual_information" in record["geometry"]
            assert "lpips" in record["absent"]
            assert (results.pictures(row.id) / "reconstructions.png").is_file()
    assert not run_tiny(name, images, shared_out, seeds=1).new_rows


def test_rows_that_are_alike_are_trained_once_and_not_looked_at_again(images, out):
    assert run_tiny("logits", images, out).new_rows == 2
    results = ResultsDirectory(out)
    for id in results.records():
        results.write_record(id, {"id": id, "metrics": {}, "untouched": True})
    again = run_tiny("temperature", images, out, only=["tau-1-0.1-linear"])
    assert (again.new_rows, again.rows) == (0, 1)
    assert all(record["untouched"] for record in results.records().values())
    assert len(list((out / "runs").iterdir())) == 3  # with the autoencoder that both start from


def test_rows_start_from_the_autoencoder_of_their_seed_and_record_its_checksum(images, out, monkeypatch):
    started = []
    plain = records_module.train

    def train(run, *arguments, start_from=None, **options):
        if start_from is not None:
            started.append((run.seed, start_from.fingerprint()))
        return plain(run, *arguments, start_from=start_from, **options)

    monkeypatch.setattr(records_module, "train", train)
    run_tiny("comparison", images, out, only=["LGQ", "FSQ"], seeds=2)
    results = ResultsDirectory(out)
    autoencoders = {r["seed"]: r for r in results.records().values() if r["kind"] == "autoencoder"}
    checksums = {seed: record["fingerprint"] for seed, record in autoencoders.items()}
    assert sorted(started) == sorted(2 * [*checksums.items()])
    assert len(set(checksums.values())) == 2
    for record in tokenizer_records(out):
        start = autoencoders[record["seed"]]
        assert record["start"] == {"id": start["id"], "fingerprint": start["fingerprint"]}
        assert record["config"]["start_from"]["parts"] == ["encoder", "decoder"]
    cold = SMOKE.adjusted(warm_start="never")
    run_tiny("comparison", images, out / "cold", scale=cold, only=["FSQ"])
    (record,) = ResultsDirectory(out / "cold").records().values()
    assert record["start"] is None
    assert "start_from" not in record["config"]
    with pytest.raises(ResultsError, match=r"\(`warm_start`\) of comparison"):
        run_tiny("comparison", images, out, scale=cold)
    # Weights that are not those of the record are refused.
    save = load_tokenizer(results.run(autoencoders[0]["id"]))
    torch.nn.init.zeros_(save.encoder.stem.weight)
    save.save_pretrained(results.run(autoencoders[0]["id"]) / "best")
    with pytest.raises(LGQError, match=autoencoders[0]["id"]):
        run_tiny("comparison", images, out, only=["VQ"])


def test_no_image_that_a_table_reports_chooses_weights_or_settings(images, out, monkeypatch):
    seen = {"choosing": set(), "reported": set()}
    plain = {
        name: getattr(records_module, name) for name in ("train", "evaluate_tokenizer", "study_codebook")
    }

    def names(data) -> set[str]:
        return {data[i].name for i in range(len(data))}

    def train(*arguments, val_data, **options):
        seen["choosing"] |= names(val_data)
        return plain["train"](*arguments, val_data=val_data, **options)

    def evaluate(name):
        def evaluated(tokenizer, data, *arguments, **options):
            if tokenizer.settings["quantizer"] != "none":  # autoencoders are measured, and nothing is chosen
                seen["choosing" if searching else "reported"] |= names(data)
            return plain[name](tokenizer, data, *arguments, **options)

        return evaluated

    monkeypatch.setattr(records_module, "train", train)
    for name in ("evaluate_tokenizer", "study_codebook"):
        monkeypatch.setattr(records_module, name, evaluate(name))
    searching = False
    run_tiny("comparison", images, out, only=["FSQ"])
    run_tiny(table_of(SMOKE.row("vq")), images, out)
    searching = True
    run_tiny(table_of(replace(SMOKE.row("fsq"), searching=True)), images, out / "search")
    sources = sources_of(images)
    assert not seen["choosing"] & seen["reported"]
    assert seen["choosing"] <= names(sources.choosing)
    assert seen["reported"] == names(sources.reported)
    assert names(sources.choosing) | names(sources.reported) == names(sources.validation)
    assert not names(sources.choosing) & names(sources.reported)
    assert "(the half that chooses)" in repr(sources.choosing)
    assert "(the half that is reported)" in repr(sources.reported)
    with pytest.raises(LGQError, match="2 validation images or more, got 1"):
        open_sources(str(images / "train"), Subset(FolderDataset(images / "val"), [0]))


def test_the_second_process_waits_for_the_autoencoder_that_the_first_trains(images, out, monkeypatch, caplog):
    caplog.set_level("INFO", logger="lgq")
    autoencoder = run_id(SMOKE.start, SMOKE, sources_of(images).fingerprint)
    with ExitStack() as lock:
        lock.enter_context(directory_lock(ResultsDirectory(out).lock(autoencoder)))
        sleep = "lgq.experiments.runner.time.sleep"
        monkeypatch.setattr(sleep, lambda seconds: lock.close() if seconds > 1 else None)
        outcome = run_tiny("comparison", images, out, only=["FSQ"])
    assert (outcome.new_rows, outcome.exit_code) == (1, 0)
    assert "waiting" in caplog.text


def test_a_generator_has_its_tokenizers_row_and_tokens_and_shows_what_the_others_show(images, shared_out):
    run_tiny("generation", images, shared_out)
    results = ResultsDirectory(shared_out)
    records = {row.row: results.record(row.id) for row in results.plans()["generation"].rows}
    record = records["fsq"]
    assert record["fingerprint"] == results.record(record["tokenizer"])["fingerprint"]
    assert record["config"]["tokenizer"]["quantizer"] == "fsq"
    assert {"gfid", "kid"} <= record["metrics"].keys() == record["std"].keys()
    assert record["likelihood"]["nll"] > 0
    assert len(TokenDataset(results.tokens(record["tokenizer"]))) == 12
    for half in ("choosing", "reported"):
        assert len(TokenDataset(results.tokens(f"{record['tokenizer']}-{half}"))) == 4
    assert (results.pictures(record["id"]) / "samples.png").is_file()
    (classes,) = {tuple(record["shown_classes"]) for record in records.values()}
    assert set(classes) <= {"cat", "dog"}
    assert len({record["fid"]["reference_sha256"] for record in records.values()}) == 1


def test_a_scale_may_limit_the_images_that_are_encoded_for_a_generator(images, out):
    few = replace(SMOKE, measuring=replace(SMOKE.measuring, encoded_images=3))
    run_tiny("generation", images, out, scale=few, only=["fsq"])
    results = ResultsDirectory(out)
    (record,) = (record for record in results.records().values() if record["kind"] == "generator")
    for part in ("", "-choosing", "-reported"):
        assert len(TokenDataset(results.tokens(f"{record['tokenizer']}{part}"))) == 3


def test_more_seeds_are_more_rows_of_the_same_table_and_show_the_images_that_were_named(images, out):
    shown = SampleDataset("whole")
    for seeds in (2, 1):
        run_tiny("comparison", replace(sources_of(images), shown=shown), out, only=["FSQ"], seeds=seeds)
    expected = next(ImageLoader(shown, LoaderSettings(image_size=16, batch_size=8)).one_pass()).images
    assert ResultsDirectory(out).originals.read_bytes() == strip_png(expected)
    plan = ResultsDirectory(out).plans()["comparison"]
    assert [row.seed for row in plan.rows] == [0, 1] * len(QUANTIZERS)
    records = tokenizer_records(out)
    assert sorted(record["seed"] for record in records) == [0, 1]
    assert len({record["fingerprint"] for record in records}) == 2


@pytest.mark.parametrize("released", [False, True])
def test_a_row_that_another_process_holds_is_taken_at_the_end_or_left_to_it(released, images, out, caplog):
    caplog.set_level("INFO", logger="lgq")
    first = next(iter(plan_rows(EXPERIMENTS["logits"], SMOKE, sources_of(images), out).rows))
    with ExitStack() as lock:
        lock.enter_context(directory_lock(ResultsDirectory(out).lock(first.id)))

        def draw_other_row(*_, **__):
            if released:
                lock.close()
            return {}

        outcome = run_tiny("logits", images, out, draw=draw_other_row)
    expected = ([], 2, 0) if released else ([first.id], 1, INTERRUPTED)
    assert (outcome.busy, outcome.new_rows, outcome.exit_code) == expected
    assert "left to another process" in caplog.text
    assert run_tiny("logits", images, out).exit_code == 0


def test_a_row_that_diverges_is_recorded_and_the_others_go_on(images, out):
    diverging = SMOKE.row(diversity_weight=1e39)
    generator = replace(SMOKE.generated("lgq"), tokenizer=diverging)
    table = table_of(diverging, generator, SMOKE.row("fsq"))
    outcome = run_tiny(table, images, out)
    records = ResultsDirectory(out).records()
    assert (outcome.new_rows, outcome.exit_code, len(records)) == (3, 0, 4)
    failed, without_tokenizer = (records[id] for id in outcome.failed)
    assert "at step 0" in failed["failed"]
    assert failed["config"]["quantizer_options"]["diversity_weight"] == 1e39
    assert "its tokenizer failed" in without_tokenizer["failed"]
    assert without_tokenizer["tokenizer"] == failed["id"]
    assert run_tiny(table, images, out).new_rows == 0


# In training and in evaluation: validations are part of the training, and have no such sample.
@pytest.mark.parametrize(("owner", "name"), [(torch.optim.AdamW, "step"), (FeatureSample, "update")])
def test_a_signal_stops_the_runner_and_the_same_call_goes_on(owner, name, images, out, monkeypatch):
    undisturbed, stopped = out / "undisturbed", out / "stopped"
    run_tiny("logits", images, undisturbed)
    with monkeypatch.context() as patch:
        plain = getattr(owner, name)

        def signalled(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)
            return plain(*args, **kwargs)

        patch.setattr(owner, name, signalled)
        outcome = run_tiny("logits", images, stopped)
    assert (outcome.stopped, outcome.exit_code, outcome.new_rows) == (True, INTERRUPTED, 0)
    assert not tokenizer_records(stopped)
    assert run_tiny("logits", images, stopped).new_rows == 2
    assert finished(stopped) == finished(undisturbed)


def test_another_protocol_in_one_directory_is_refused(images, out):
    run_tiny("logits", images, out, only=["l2"])
    sources, longer = sources_of(images), SMOKE.adjusted(steps=6)
    more_ablation = replace(SMOKE, ablation=SMOKE.adjusted(steps=5).ablation)
    for words, name, scale, given in (
        ("`steps` of logits was 4, now 6", "logits", longer, sources),
        (r"the steps of ablations \(`steps`\) of logits was 4, now 5", "logits", more_ablation, sources),
        ("`scale` of logits was smoke, now pocket", "cost", named_scale("pocket"), sources),
        (
            "`val_data` of logits was val, now val, which holds other images",
            "cost",
            SMOKE,
            replace(sources, validation=sources.data),
        ),
        ("`show` of logits was val, now sky", "cost", SMOKE, replace(sources, names=("train", "val", "sky"))),
    ):
        with pytest.raises(ResultsError, match=words):
            run_tiny(name, given, out, scale=scale)
    assert set(ResultsDirectory(out).plans()) == {"logits"}
    run_tiny("scaling", images, out, scale=longer, only=["lgq-k32"])


def test_rows_are_chosen_by_label_group_or_name_and_a_cost_has_no_seeds(images, out):
    everything = 2 * len(QUANTIZERS) + 3  # two sizes of each; LGQ and IBQ have more
    for only, rows in ((["fsq"], 2), (["K = 64"], 2), (["lgq-k8", "SimVQ"], 3), ([], everything)):
        assert run_tiny("cost", images, out, only=only, seeds=3).rows == rows
    record = next(iter(ResultsDirectory(out).records().values()))
    assert record["metrics"] == {"ms": 2.0, "extra_bytes": 64}
    assert record["others"][0]["implementation"] == "dense"


@pytest.mark.parametrize(("load", "warns"), [(0.5, False), (60.0, True)])
def test_timings_on_a_busy_machine_are_warned_of_and_say_so(load, warns, monkeypatch, caplog):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    task = replace(SMOKE.timed("fsq", 8), tokens=8, repeats=1)
    ours = measure_cost(task, torch.device("cpu"))[0]
    assert (ours["load"], ours["cores"]) == (load, 2)
    assert ("the machine is busy (load 60.0, 2 cores)" in caplog.text) == warns
