"""Files that were whole once: cut short, with a bit turned, emptied, gone, or in the place of another."""

import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tiny_run import TINY

from faults.children import REFUSED
from faults.fault import Attempt, Fault
from faults.injections import SignalAtStep
from faults.lab import Lab, contents, require_documented
from lgq.files import write_new_file
from lgq.hub import PretrainedError, WeightsChoice
from lgq.tokenizer import load_tokenizer
from lgq.training.checkpoint import Checkpoints

FOURTH_STEP = SignalAtStep(4, (signal.SIGTERM,))
OTHER = replace(TINY, seed=1)
PARTS = ("state.safetensors", "state.json", "manifest.json")

Damage = Callable[[Path], None]
"""Of a file, or of a directory."""


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


def refusal(action: Callable[[], object], kind: type[ValueError]) -> str:
    """The one line with which it is refused."""
    try:
        action()
    except kind as error:
        message = str(error)
    else:
        raise AssertionError("damage was taken for whole")
    assert "\n" not in message, message
    return message


def _overwrite(file: Path, data: bytes) -> None:
    file.unlink()
    write_new_file(file, data)


def stopped_run(lab: Lab) -> Path:
    return lab.stopped_after(TINY, FOURTH_STEP)


def cut_checkpoints(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for part in PARTS:
        for damage in cuts(chance, 8):
            yield partial(_falls_back, lab, part, damage)


def flipped_checkpoints(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for part in PARTS:
        for damage in flips(chance, 12):
            yield partial(_falls_back, lab, part, damage)


def absent_checkpoints(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for part in PARTS:
        for damage in (Path.unlink, partial(cut, share=0.0)):
            yield partial(_falls_back, lab, part, damage)


def swapped_checkpoints(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    other = lab.stopped_after(OTHER, FOURTH_STEP) / "checkpoints"
    for part in PARTS:
        yield partial(_falls_back, lab, part, partial(_taken_from, other / "step-000004" / part))
        yield partial(_falls_back, lab, part, partial(_taken_from, other / "step-000002" / part))
    weights = lab.stopped_after(OTHER, FOURTH_STEP) / "last" / "model.safetensors"
    yield partial(_falls_back, lab, "state.safetensors", partial(_taken_from, weights))
    yield partial(_falls_back, lab, "", lambda newest: _taken_from(newest.with_name("step-000002"), newest))


def _taken_from(source: Path, place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
        shutil.copytree(source, place)
    else:
        shutil.copyfile(source, place)


def _falls_back(lab: Lab, part: str, damage: Damage) -> int:
    """The newest checkpoint is damaged: the run goes on from the one before, and says why."""
    with lab.place(stopped_run(lab)) as out:
        newest, before = Checkpoints(out / "checkpoints").paths()[:2]
        damage(newest / part)
        resumed = lab.train(TINY, out)
        assert any("skipped a checkpoint" in warning for warning in resumed.warnings), resumed.warnings
        lab.require_undisturbed(TINY, out, resumed)
    return max(0, int(before.name.removeprefix("step-")) - resumed.resumed)


def all_damaged(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for damage in (*cuts(chance, 2), *flips(chance, 2)):
        yield partial(_all_damaged, lab, damage)


def _all_damaged(lab: Lab, damage: Damage) -> int:
    with lab.place(stopped_run(lab)) as out:
        for path in Checkpoints(out / "checkpoints").paths():
            damage(path / "state.safetensors")
        _refused(lab, out, "is whole: restore one from a copy")
    return 0


def foreign_checkpoint(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    yield partial(_foreign_checkpoint, lab)


def _foreign_checkpoint(lab: Lab) -> int:
    """A whole checkpoint of another run is the newest; without it, the run goes on."""
    foreign = lab.stopped_after(OTHER, SignalAtStep(5, (signal.SIGTERM,))) / "checkpoints/step-000005"
    with lab.place(stopped_run(lab)) as out:
        shutil.copytree(foreign, out / "checkpoints/step-000005")
        _refused(lab, out, "was begun with other settings: ")
        shutil.rmtree(out / "checkpoints/step-000005")
        resumed = lab.train(TINY, out)
        lab.require_undisturbed(TINY, out, resumed)
    return max(0, 4 - resumed.resumed)


def _refused(lab: Lab, out: Path, words: str) -> None:
    before = contents(out)
    found = lab.train(TINY, out)
    require_documented(found, (REFUSED,))
    assert words in found.error, found.error
    assert contents(out) == before, "the refusal changed something"


def published_weights(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    other = lab.stopped_after(OTHER, FOURTH_STEP)
    for name in ("last/model.safetensors", "best/model.safetensors", "last/config.json"):
        damages = [*cuts(chance, 3), *flips(chance, 5), partial(_taken_from, other / name)]
        if name != "last/config.json":  # two seeds have the same one
            yield partial(_published_weights, lab, name, damages.pop())
        for damage in damages:
            yield partial(_published_weights, lab, name, damage)


def _published_weights(lab: Lab, name: str, damage: Damage) -> int:
    """Nobody gets them from their run; one that resumes writes the last ones anew."""
    which: WeightsChoice = "last" if name.startswith("last") else "best"
    with lab.place(stopped_run(lab)) as out:
        damage(out / name)
        message = refusal(lambda: load_tokenizer(out, which), PretrainedError)
        assert f"{out / which} is damaged: {Path(name).name} has " in message, message
        if which == "best":
            return 0
        resumed = lab.train(TINY, out)
        lab.require_undisturbed(TINY, out, resumed)
        load_tokenizer(out, which)
    return max(0, 4 - resumed.resumed)


def other_files(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for name in ("config.json", "environment.json", ".lock"):
        for damage in (*cuts(chance, 2), *flips(chance, 2), Path.unlink):
            yield partial(_no_matter, lab, name, damage)


def _no_matter(lab: Lab, name: str, damage: Damage) -> int:
    """A run that resumes writes them anew, of what its checkpoint says."""
    with lab.place(stopped_run(lab)) as out:
        damage(out / name)
        resumed = lab.train(TINY, out)
        lab.require_undisturbed(TINY, out, resumed)
        if name == "config.json":
            assert (out / name).read_bytes() == (stopped_run(lab) / name).read_bytes()
    return max(0, 4 - resumed.resumed)


def records(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(6):
        yield partial(_records, lab, chance.random())


def _records(lab: Lab, share: float) -> int:
    """A line that is none any more is refused; restored, the run goes on."""
    with lab.place(stopped_run(lab)) as out:
        file = out / "metrics.jsonl"
        whole = file.read_bytes()
        lines = whole.splitlines(keepends=True)
        number = int(share * (len(lines) - 1))
        lines[number] = lines[number].replace(b"{", b"[", 1)
        file.write_bytes(b"".join(lines))
        _refused(lab, out, f"line {number + 1} of {file} is damaged")
        file.write_bytes(whole)
        resumed = lab.train(TINY, out)
        lab.require_undisturbed(TINY, out, resumed)
    return max(0, 4 - resumed.resumed)


BACK = "It is never taken for whole: the run warns, goes on from the one before, and ends with the same bits."
ONE_LINE = "Refused in one line, with everything left as it was."

FAULTS = (
    Fault("checkpoint cut short", BACK, cut_checkpoints),
    Fault("checkpoint with a flipped bit", BACK, flipped_checkpoints),
    Fault("checkpoint with an empty or missing file", BACK, absent_checkpoints),
    Fault("checkpoint with files of another step or run", BACK, swapped_checkpoints),
    Fault("every checkpoint damaged", ONE_LINE, all_damaged),
    Fault("checkpoint of another run", f"{ONE_LINE} Without it, the run goes on.", foreign_checkpoint),
    Fault(
        "published weights cut, flipped or another's",
        "No command loads them from the run directory; a resumed run writes the last ones anew.",
        published_weights,
    ),
    Fault("config.json, environment.json or .lock damaged", "A resumed run writes them anew.", other_files),
    Fault(
        "metrics.jsonl with a damaged line", f"{ONE_LINE} With a copy in its place, the run goes on.", records
    ),
)
