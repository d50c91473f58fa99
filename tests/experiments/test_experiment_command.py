"""`lgq experiment` as a user types it."""

import re

import pytest
from PIL import Image
from result_sets import plan_of
from tiny_experiments import SMOKE, cheap_networks, sources_of

from lgq.cli import main
from lgq.experiments.plan import plan_rows
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.runner import ExperimentOutcome
from lgq.experiments.tables import named_experiment
from lgq.quantizers import QUANTIZERS


def command(name, images, out, *options):
    sources = ["--data", str(images / "train"), "--val-data", str(images / "val")]
    return ["experiment", name, "--scale", "smoke", *sources, "--out", str(out), *options]


def run(*arguments):
    with cheap_networks():
        main(command(*arguments))


def refusal(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_row_is_trained_recorded_and_drawn(images, out, capsys):
    options = ("--only", "LGQ", "--steps", "2", "--show", "sample:whole")
    run("comparison", images, out, *options)
    printed = capsys.readouterr().err
    assert "row 1 of 1: LGQ, seed 0" in printed
    assert "all 1 rows are finished, 1 of them now" in printed
    results = ResultsDirectory(out)
    (record,) = (record for record in results.records().values() if record["kind"] == "tokenizer")
    assert record["command"] == ["lgq", *command("comparison", images, out, *options)]
    assert (record["config"]["loop"]["steps"], record["steps"]) == (2, 2)
    stems = {path.stem for path in results.pictures(record["id"]).iterdir()}
    assert stems >= {"reconstructions", "usage", "norms", "atlas", "overlay", "best", "median", "worst"}
    for picture in (results.originals, results.pictures(record["id"]) / "reconstructions.png"):
        with Image.open(picture) as image:
            assert image.size == (8 * 16, 16)
    assert results.plans()["comparison"].shown == "sample:whole"
    assert "--show of comparison was sample:whole, now" in refusal(capsys, "cost", images, out)


def test_a_dry_run_says_what_is_to_be_done_and_writes_nothing(images, out, capsys):
    run("comparison", images, out / "one", "--only", "FSQ", "--steps", "2")
    before = sorted((out / "one").rglob("*"))
    run("comparison", images, out / "one", "--dry-run", "--steps", "2", "--seeds", "2", "--shard", "0/2")
    printed = " ".join(capsys.readouterr().out.split())
    rows = 2 + len(QUANTIZERS)  # half of two seeds, and two autoencoders
    assert f"2 of {rows} rows are finished; training the others takes under a minute here" in printed
    assert "first its autoencoder, seed 0 finished 2" in printed
    assert "first its autoencoder, seed 1 to do 2" in printed
    assert re.search(r"FSQ, seed 0 finished 2 8,949 -", printed)
    assert re.search(r"LGQ, seed 0 to do 2 [89],[0-9]{3} < 1 min", printed)
    assert sorted((out / "one").rglob("*")) == before
    run("generation", images, out / "two", "--dry-run", "--only", "lgq")
    assert re.search(r"LGQ, seed 0 to do 4 3,[0-9]{3} < 1 min", " ".join(capsys.readouterr().out.split()))
    assert not (out / "two").exists()


def test_a_dry_run_says_of_which_rows_it_does_not_know_the_time(images, out, capsys):
    run("gaussian", images, out, "--dry-run", "--only", "fsq", "--steps", "7")
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"0 of \d+ rows are finished; how long the others take is not known", printed)
    assert "under a minute" not in printed
    assert re.search(r"FSQ, K = 32, mean 0, seed 0 to do 7 ", printed)


def finish_all(images, out):
    """Write a record of every row of "gaussian" without any training, and return their files."""
    planned = plan_rows(named_experiment("gaussian"), SMOKE, sources_of(images), out)
    for row in planned.rows:
        planned.results.write_record(row.id, {"metrics": {"mse": 0.5}})
    return sorted((out / "rows").glob("*.json"))


def test_a_dry_run_of_finished_rows_estimates_nothing(images, out, capsys):
    finish_all(images, out)
    run("gaussian", images, out, "--dry-run")
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"(\d+) of \1 rows are finished", printed)
    assert "the others" not in printed


@pytest.mark.parametrize("option", [(), ("--dry-run",)])
def test_damaged_records_are_named_before_any_work(images, out, capsys, option):
    records = finish_all(images, out)
    records[0].write_text(records[0].read_text().replace("0.5", "0.1"))
    records[-1].write_text("{")
    with pytest.raises(SystemExit):
        run("gaussian", images, out, *option)
    printed = capsys.readouterr().err
    assert "2 records are damaged: remove them, and run the same command again" in printed
    assert all(str(record) in printed for record in (records[0], records[-1]))
    assert "finished already" not in printed


def test_a_dry_run_refuses_another_protocol_too(images, out, capsys):
    run("cost", images, out, "--only", "FSQ")
    said = refusal(capsys, "cost", images, out, "--dry-run", "--data", str(images / "val"))
    assert f"--data of cost was {images / 'train'}, now {images / 'val'}; give the same options" in said


def test_mistakes_come_before_a_word_on_validation_images(images, out, capsys):
    for option in (["--only", "l3"], ["--shard", "2/2"], ["--data", str(images / "nowhere")]):
        words = [
            "experiment",
            "logits",
            "--scale",
            "smoke",
            "--data",
            str(images / "train"),
            "--out",
            str(out),
        ]
        with pytest.raises(SystemExit):
            main([*words, *option])
        assert "no validation data" not in capsys.readouterr().err


def test_the_help_names_the_experiment_with_more_seeds_and_no_option_in_its_place(capsys):
    for command, words in (
        ("experiment", "by default 1, at the pocket scale 3 or 5"),
        ("report", "by default nothing is copied"),
    ):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert words in " ".join(capsys.readouterr().out.split())


def test_mistakes_are_named_in_one_line(images, out, capsys):
    for words, *arguments in (
        ("did you mean 'comparison'", "comparson", images, out),
        ("form i/n", "logits", images, out, "--shard", "1"),
        ("form i/n", "logits", images, out, "--shard", "0/0"),
        ("form i/n", "logits", images, out, "--shard=-1/2"),
        ("from 0 to n - 1, such as 0/4, got '2/2'", "logits", images, out, "--shard", "2/2"),
        ("unknown row 'l3': did you mean 'l2'", "logits", images, out, "--only", "l3"),
        ("--seeds must be", "logits", images, out, "--seeds", "0"),
        ("does not exist", "logits", images / "nowhere", out),
        ("cannot use", "logits", images, images / "train" / "cat" / "0.png" / "x"),
    ):
        assert words in refusal(capsys, *arguments), words
        assert not out.exists()


def test_a_row_left_to_another_process_ends_in_code_75(images, out, monkeypatch, capsys):
    busy = ExperimentOutcome(plan_of("logits", []), 2, 1, busy=["lgq-k32"], failed=["fsq-k32"])
    monkeypatch.setattr("lgq.cli.experiment.experiment", lambda **_: busy)
    with pytest.raises(SystemExit) as stop:
        run("logits", images, out)
    assert stop.value.code == 75
    printed = capsys.readouterr().err
    for words in ("lgq-k32 is still in use by another process", "fsq-k32 failed", "continues"):
        assert words in printed
