"""What docs/scaling.md says of torchrun and Slurm holds: its commands are commands, its job goes on."""

import re
import shlex
from pathlib import Path

import pytest
from test_docs import blocks, run_slurm_job

from lgq import cli

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"


def shown() -> list[list[str]]:
    """The words of each command of `lgq`, by itself or behind torchrun and the job of Slurm."""
    found = []
    for line in "".join(blocks(PAGE, "sh")).splitlines():
        words = shlex.split(line)
        command = re.match(r"LGQ_COMMAND=(\w+)", line)
        if words[0] == "lgq":
            found.append(words[1 : words.index(">")])
        elif "lgq.cli" in words:
            found.append(words[words.index("lgq.cli") + 1 :])
        elif "docs/train.sbatch" in words:
            rest = words[words.index("docs/train.sbatch") + 1 :]
            found.append([command[1] if command else "train", *rest])
        elif "--wrap" in words:
            found.append(shlex.split(words[-1].replace("$SLURM_ARRAY_TASK_ID", "3"))[1:])
    return found


@pytest.mark.parametrize("words", shown(), ids=" ".join)
def test_a_command_that_is_shown_is_one(words):
    assert cli._parse(words)


def test_commands_of_every_kind_are_shown():
    assert {words[0] for words in shown()} == {"train", "encode", "evaluate", "sample", "experiment", "bench"}


@pytest.mark.parametrize(
    ("end", "requeued"),
    [("kill -USR1 $$", True), ("exit 75", True), ("exit 0", False), ("kill -KILL $$", False)],
)
def test_work_that_keeps_what_is_finished_is_queued_again_after_the_warning(
    tmp_path, monkeypatch, end, requeued
):
    monkeypatch.setenv("LGQ_COMMAND", "encode")
    _, calls = run_slurm_job(tmp_path, end)
    assert "python 3/8 local 1: -m lgq.cli encode imagenet256-lgq --data a b.tar --out run" in calls
    assert ("scontrol requeue 77" in calls) == requeued
