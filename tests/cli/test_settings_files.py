"""Settings files as a user types them: `--dry-run` prints one, `--config` reads it, options come last."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TINY_GENERATOR, TINY_TOKENIZER, lgq, mistake
from token_sets import write_tokens

from lgq.runs import named_run, tokenizer_names
from lgq.tokenizer import Tokenizer
from lgq.training.journal import read_records

TRAIN = ["train", "pocket-lgq", "--data", "sample", *TINY_TOKENIZER]


def config(out: Path) -> dict[str, Any]:
    return json.loads((out / "config.json").read_text())


def test_what_a_dry_run_prints_trains_the_same_run(tmp_path, capsys):
    lgq(*TRAIN, "--out", tmp_path / "a", "--steps", 2, "--dry-run")
    printed = capsys.readouterr()
    (tmp_path / "run.json").write_text(printed.out)
    assert json.loads(printed.out)["codebook_size"] == 16
    assert "parameters, encoder" in printed.err
    lgq(*TRAIN, "--out", tmp_path / "a", "--steps", 2)
    lgq("train", "--config", tmp_path / "run.json", "--data", "sample", "--out", tmp_path / "b")
    assert config(tmp_path / "b") == config(tmp_path / "a")
    weights = [(tmp_path / name / "last/model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    lgq(*TRAIN, "--out", out, "--steps", 2)
    return out


def test_options_replace_fields_of_the_file_and_the_file_those_of_the_name(run, tmp_path, capsys):
    plan = ["--data", "sample", "--out", tmp_path / "new", "--dry-run", "--seed", 4]
    for words in (["train"], ["train", "imagenet256-lgq"]):
        for file in (run / "config.json", run):
            lgq(*words, *plan, f"--config={file}", "--loss.l1", 3, "--steps", 9)
            planned = json.loads(capsys.readouterr().out)
            assert (planned["seed"], planned["loss"]["l1"], planned["loop"]["steps"]) == (4, 3.0, 9)
            assert (planned["quantizer"], planned["codebook_size"], planned["image_size"]) == ("lgq", 16, 16)
            # So that another seed starts from other codes too.
            assert "seed" not in planned["quantizer_options"]
    (tmp_path / "part.json").write_text('{"codebook_size": 8}')
    lgq("train", "smoke-fsq", *plan, "--config", tmp_path / "part.json")
    planned = json.loads(capsys.readouterr().out)
    assert (planned["quantizer"], planned["codebook_size"], planned["image_size"]) == ("fsq", 8, 16)


def test_a_run_goes_on_with_its_own_config(run, tmp_path, capsys):
    lgq("train", "--config", run, "--data", "sample", "--out", run, "--steps", 3, "--resume", "must")
    assert "3 steps instead of 2" in capsys.readouterr().err
    lgq("train", "--config", run / "config.json", "--data", "sample", "--out", run)
    printed = capsys.readouterr().err
    assert "all 3 steps are done; best l1 0." in printed
    assert "at step" in printed
    assert len([record for record in read_records(run) if record["split"] == "history"]) == 1


def test_a_generator_has_settings_files_too(tmp_path, capsys):
    torch.manual_seed(0)
    tokenizer = Tokenizer(codebook_size=6, backbone=named_run("smoke-lgq").backbone)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    drawn = torch.randint(6, (5, 4, 4))
    encoding = {"codebook_size": 6, "fingerprint": tokenizer.fingerprint(), "factor": tokenizer.factor}
    write_tokens(tmp_path / "tokens", drawn, **encoding)
    sources = ["--tokens", tmp_path / "tokens", "--tokenizer", tmp_path / "tokenizer"]
    lgq("train-generator", "pocket", *sources, "--out", tmp_path / "a", *TINY_GENERATOR)
    again = ["train-generator", "--config", tmp_path / "a", *sources, "--out", tmp_path / "b"]
    lgq(*again, "--start-from", tmp_path / "a")
    begun = config(tmp_path / "b")
    assert begun.pop("start_from")["parts"] == ["layers", "codes", "positions", "classes"]
    assert begun == config(tmp_path / "a")
    assert "starting from" in capsys.readouterr().err
    lgq(*again, "--steps", 4)
    assert "4 steps instead of 3" in capsys.readouterr().err
    assert "give it to `lgq train-generator`" in mistake(
        capsys, "train", "--config", tmp_path / "a", "--data", "sample", "--out", tmp_path / "c"
    )


def test_a_wrong_field_is_named_with_its_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text('{"loss": {"l2": 1}}')
    words = ["--config", "run.json", "--data", "sample", "--out", "new"]
    assert "run.json leaves out batch_size" in mistake(capsys, "train", *words)
    assert "run.json: unknown field 'loss.l2'" in mistake(capsys, "train", "pocket-lgq", *words)
    assert "gone.json: No such file" in mistake(capsys, "train", *words, "--config", "gone.json")
    assert "or a --config FILE" in mistake(capsys, "train", *words[2:])
    assert not Path("new").exists()


def test_the_list_of_runs_fits_the_terminal_and_has_a_line_for_every_name(capsys):
    lgq("runs")
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    assert printed.count("The paper's run, for four GPUs") == 1
    lines = [line.split() for line in printed if line.startswith("  ")]
    names = [words[0] for words in lines]
    assert names == ["name", *tokenizer_names(), "name", "pocket", "imagenet256", "smoke"]
    (line,) = (" ".join(words) for words in lines if words[0] == "imagenet256-lgq")
    assert line == "imagenet256-lgq LGQ 256 x 256 16 x 16 16,384 2,000,000"
