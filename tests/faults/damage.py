"""Damaged files of a run, tokens and results: cut short, with a flipped bit, empty, missing, or swapped."""

import random
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tiny_run import TINY
from token_sets import write_tokens

from faults.children import REFUSED
from faults.injections import SignalAtStep
from faults.lab import Cases, Fault, Lab, contents, require_documented, times
from lgq.data.token_format import TokenError
from lgq.data.tokens import TokenDataset
from lgq.experiments.results_directory import ResultsDirectory
from lgq.files import WeightsChoice, write_new_file
from lgq.hub import PretrainedError
from lgq.results import ResultsError, append_result, read_results
from lgq.tokenizer import load_tokenizer
from lgq.training.checkpoint import Checkpoints

FOURTH_STEP = SignalAtStep(4, (signal.SIGTERM,))
OTHER = replace(TINY, seed=1)
PARTS = ("state.safetensors", "state.json", "manifest.json")
RECORDS = [{"kind": "tokenizer", "seed": seed, "metrics": {"psnr": 20.0 + seed}} for seed in range(3)]
TOKENS = ("tokens.json", "tokens-00000.safetensors", "tokens-00001.safetensors")

Damage = Callable[[Path], None]
"""Damages a file or a directory."""


def cut(file: Path, share: float) -> None:
    data = file.read_bytes()
    _overwrite(file, data[: int(share * len(data))])


def flip(file: Path, share: float, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[int(share * len(data))] ^= 1 << bit
    _overwrite(file, bytes(data))


def flips(chance: random.Random, count: int) -> Iterator[Damage]:
    for _ in range(count):
        yield partial(flip, share=chance.random(), bit=chance.randrange(8))


def cuts(chance: random.Random, count: int) -> Iterator[Damage]:
    for _ in range(count):
        yield partial(cut, share=chance.random())


def damages(names: tuple[str, ...], kinds: Callable[[random.Random], Iterable[Damage]]) -> Cases:
    """Every kind of damage to every file."""
    return lambda _, chance: [(name, damage) for name in names for damage in kinds(chance)]


def refusal(action: Callable[[], object], kind: type[ValueError]) -> str:
    """Return the one line with which an action is refused."""
    try:
        action()
    except kind as error:
        message = str(error)
    else:
        raise AssertionError("the damage was not noticed")
    assert "\n" not in message, message
    return message


def _overwrite(file: Path, data: bytes) -> None:
    file.unlink()
    write_new_file(file, data)


def stopped_run(lab: Lab) -> Path:
    return lab.stopped_after(TINY, FOURTH_STEP)


def other_run(lab: Lab) -> Path:
    return lab.stopped_after(OTHER, FOURTH_STEP)


def swaps(lab: Lab, _: random.Random) -> Iterator[tuple[str, Damage]]:
    """Files of another run, of another step of it, its weights, and a checkpoint of another step."""
    for part in PARTS:
        yield part, partial(_taken_from, other_run(lab) / "checkpoints/step-000004" / part)
        yield part, partial(_taken_from, other_run(lab) / "checkpoints/step-000002" / part)
    yield "state.safetensors", partial(_taken_from, other_run(lab) / "last/model.safetensors")
    yield "", lambda newest: _taken_from(newest.with_name("step-000002"), newest)


def _taken_from(source: Path, place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
        shutil.copytree(source, place)
    else:
        shutil.copyfile(source, place)


def falls_back(lab: Lab, part: str, damage: Damage) -> int:
    """The newest checkpoint is damaged: the run continues from the one before, and says why."""
    with lab.place(stopped_run(lab)) as out:
        newest, before = Checkpoints(out / "checkpoints").paths()[:2]
        damage(newest / part)
        resumed = lab.train(TINY, out)
        assert any("skipped a checkpoint" in warning for warning in resumed.warnings), resumed.warnings
        lab.require_undisturbed(TINY, out, resumed)
    return max(0, int(before.name.removeprefix("step-")) - resumed.resumed)


def all_damaged(lab: Lab, damage: Damage) -> int:
    with lab.place(stopped_run(lab)) as out:
        for path in Checkpoints(out / "checkpoints").paths():
            damage(path / "state.safetensors")
        _refused(lab, out, "are damaged: restore one from a copy")
    return 0


def foreign_checkpoint(lab: Lab) -> int:
    """A whole checkpoint of another run is the newest; without it, the run continues."""
    foreign = lab.stopped_after(OTHER, SignalAtStep(5, (signal.SIGTERM,))) / "checkpoints/step-000005"
    with lab.place(stopped_run(lab)) as out:
        shutil.copytree(foreign, out / "checkpoints/step-000005")
        _refused(lab, out, "was started with other settings: ")
        shutil.rmtree(out / "checkpoints/step-000005")
        return lab.resume(TINY, out, saved=4)


def _refused(lab: Lab, out: Path, words: str) -> None:
    before = contents(out)
    end = lab.train(TINY, out)
    require_documented(end, (REFUSED,))
    assert words in end.error, end.error
    assert contents(out) == before, "the refusal changed something"


def published(lab: Lab, chance: random.Random) -> Iterator[tuple[str, Damage]]:
    for name in ("last/model.safetensors", "best/model.safetensors", "last/config.json"):
        for damage in (*cuts(chance, 3), *flips(chance, 5), partial(_taken_from, other_run(lab) / name)):
            yield name, damage


def published_weights(lab: Lab, name: str, damage: Damage) -> int:
    """They are not loaded from their run; a resumed run writes the last ones again."""
    which: WeightsChoice = "last" if name.startswith("last") else "best"
    with lab.place(stopped_run(lab)) as out:
        damage(out / name)
        message = refusal(lambda: load_tokenizer(out, which), PretrainedError)
        assert f"{out / which} is damaged: {Path(name).name} has " in message, message
        if which == "best":
            return 0
        lost = lab.resume(TINY, out, saved=4)
        load_tokenizer(out, which)
    return lost


def other_files(lab: Lab, name: str, damage: Damage) -> int:
    """A resumed run writes them again, by its settings."""
    with lab.place(stopped_run(lab)) as out:
        damage(out / name)
        lost = lab.resume(TINY, out, saved=4)
        if name == "config.json":
            assert (out / name).read_bytes() == (stopped_run(lab) / name).read_bytes()
    return lost


def records(lab: Lab, share: float) -> int:
    """A damaged line is refused; with the file restored, the run continues."""
    with lab.place(stopped_run(lab)) as out:
        file = out / "metrics.jsonl"
        whole = file.read_bytes()
        lines = whole.splitlines(keepends=True)
        number = int(share * (len(lines) - 1))
        lines[number] = lines[number].replace(b"{", b"[", 1)
        file.write_bytes(b"".join(lines))
        _refused(lab, out, f"line {number + 1} of {file} is damaged")
        file.write_bytes(whole)
        return lab.resume(TINY, out, saved=4)


def tokens(lab: Lab, name: str, damage: Damage) -> int:
    """Refused when they are opened or verified; encoded again, they are what they were."""
    with lab.place() as folder:
        _encode(folder)
        whole = contents(folder)
        damage(folder / name)
        message = refusal(lambda: list(TokenDataset(folder)), TokenError)
        assert str(folder) in message, message
        _encode(folder)
        assert contents(folder) == whole, "encoding again did not mend it"
    return 0


def _encode(folder: Path) -> None:
    numbers = torch.arange(7 * 4).reshape(7, 2, 2) % 6
    write_tokens(folder, numbers, labels=[0, 1, 2, 0, 1, 2, 0], classes=("a", "b", "c"), shard_size=4)


def rows(lab: Lab, damage: Damage) -> int:
    """The damaged row is refused; the others are read as they were."""
    with lab.place() as folder:
        results = ResultsDirectory(folder)
        for record in RECORDS:
            results.write_record(f"row-{record['seed']}", record)
        damage(folder / "rows" / "row-1.json")
        refusal(lambda: results.record("row-1"), ResultsError)
        assert [results.record(f"row-{seed}") for seed in (0, 2)] == [RECORDS[0], RECORDS[2]]
    return 0


def lines(lab: Lab, damage: Damage, least: int) -> int:
    """Damaged lines are left out, no line is read wrongly, and new ones can be added."""
    with lab.place() as folder:
        file = folder / "results.jsonl"
        for record in RECORDS:
            append_result(file, record)
        damage(file)
        read = read_results(file)
        assert len(read) >= least, read
        for record in read:
            assert record in RECORDS, record
        append_result(file, {"seed": 3})
        assert read_results(file)[-1] == {"seed": 3}
    return 0


EMPTY = partial(cut, share=0.0)
BACK = "Never loaded: the run warns, continues from the one before, and ends with the same bits."
ONE_LINE = "Refused in one line, with everything left as it was."

FAULTS = (
    Fault("checkpoint cut short", BACK, falls_back, damages(PARTS, lambda c: cuts(c, 8))),
    Fault("checkpoint with a flipped bit", BACK, falls_back, damages(PARTS, lambda c: flips(c, 12))),
    Fault(
        "checkpoint with an empty or missing file",
        BACK,
        falls_back,
        damages(PARTS, lambda _: (EMPTY, Path.unlink)),
    ),
    Fault("checkpoint with files of another step or run", BACK, falls_back, swaps),
    Fault(
        "every checkpoint damaged",
        ONE_LINE,
        all_damaged,
        lambda _, c: [(d,) for d in (*cuts(c, 2), *flips(c, 2))],
    ),
    Fault(
        "checkpoint of another run",
        f"{ONE_LINE} Without it, the run continues.",
        foreign_checkpoint,
        times(1),
    ),
    Fault(
        "published weights cut, flipped or another's",
        "No command loads them from the run directory; a resumed run writes the last ones again.",
        published_weights,
        published,
    ),
    Fault(
        "config.json, environment.json or .lock damaged",
        "A resumed run writes them again.",
        other_files,
        damages(
            ("config.json", "environment.json", ".lock"), lambda c: (*cuts(c, 2), *flips(c, 2), Path.unlink)
        ),
    ),
    Fault(
        "metrics.jsonl with a damaged line",
        f"{ONE_LINE} With a copy in its place, the run continues.",
        records,
        times(6, random.Random.random),
    ),
    Fault(
        "token shard or header cut, flipped or missing",
        "Refused in one line; the same `lgq encode` mends it, bit for bit.",
        tokens,
        damages(TOKENS, lambda c: (*cuts(c, 4), *flips(c, 8), Path.unlink)),
    ),
    Fault(
        "results row cut or flipped",
        "Refused in one line; no number is ever read wrongly.",
        rows,
        lambda _, c: [(damage,) for damage in (*cuts(c, 8), *flips(c, 24))],
    ),
    Fault(
        "results.jsonl cut or flipped",
        "The line is left out with a warning; all others are read, and new ones can be added.",
        lines,
        # A flipped bit in a line's end makes one line of two.
        lambda _, c: [(d, 0) for d in cuts(c, 8)] + [(d, len(RECORDS) - 2) for d in flips(c, 24)],
    ),
)
