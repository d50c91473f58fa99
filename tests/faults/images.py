"""Images that are not there, or cannot be read."""

import io
import random
import shutil
import signal
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tiny_run import TINY

from faults.children import REFUSED, STOPPED
from faults.fault import Attempt, Fault
from faults.injections import FileCut, SignalAtStep
from faults.lab import Lab, contents, require_documented
from lgq.training.checkpoint import Checkpoints, verify

SECOND_STEP = SignalAtStep(2, (signal.SIGTERM,))


def some_corrupt(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for kind in ("cut", "text", "empty"):
        yield partial(_some_corrupt, lab, kind, SignalAtStep(chance.randint(1, 6), (signal.SIGKILL,)))


def _some_corrupt(lab: Lab, kind: str, killed: SignalAtStep) -> int:
    """A tenth of the images cannot be read: the run goes on, and a killed one ends as one that was not."""
    data = lab.kept(f"photos with {kind}", lambda: _with_corrupt(lab, kind, share=0.1))
    found = lab.survives(TINY, killed, data=str(data))
    noted = [warning for warning in found.resumed.warnings if "broken image no. 1 in" in warning]
    assert noted, found.resumed.warnings
    assert all("0.png" in warning for warning in noted), noted
    return found.lost


def all_corrupt(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for kind in ("cut", "text", "empty"):
        yield partial(_all_corrupt, lab, kind)


def _all_corrupt(lab: Lab, kind: str) -> int:
    data = lab.kept(f"nothing but {kind}", lambda: _with_corrupt(lab, kind, share=1.0))
    with lab.place() as out:
        found = lab.train(TINY, out, data=str(data))
        require_documented(found, (REFUSED,))
        assert "none of 10 images can be read" in found.error, found.error
    return 0


def _with_corrupt(lab: Lab, kind: str, share: float) -> Path:
    """Ten photos, of which some are broken."""
    folder = lab.new_path()
    folder.mkdir()
    for number in range(10):
        file = folder / f"{number}.png"
        shutil.copyfile(lab.photos / f"{number % 5}.png", file)
        if number < 10 * share:
            data = file.read_bytes()
            file.write_bytes({"cut": data[: len(data) // 2], "text": b"no image", "empty": b""}[kind])
    return folder


def missing_shard(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for number in (0, 1):
        yield partial(_without, lab, number, None)


def cut_shard(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(10):
        yield partial(_without, lab, chance.randrange(2), chance.random())


def _without(lab: Lab, number: int, share: float | None) -> int:
    """A shard is gone, or has lost its end, when a run is to go on; with the shard, it goes on."""
    folder = lab.kept("shards", lambda: _write_shards(lab))
    data, shard = str(folder / "train-{0..1}.tar"), folder / f"train-{number}.tar"
    whole = shard.read_bytes()
    with lab.place() as out:
        assert lab.train(TINY, out, SECOND_STEP, data=data).code == STOPPED
        before = contents(out)
        shard.unlink()
        if share is not None:
            # Some of the zeros at the end may go: they are no images.
            shard.write_bytes(whole[: int(share * (len(whole.rstrip(b"\0")) - 1))])
        found = lab.train(TINY, out, data=data)
        shard.write_bytes(whole)
        require_documented(found, (REFUSED,))
        assert shard.name in found.error or "images (was" in found.error, found.error
        assert contents(out) == before, "the refusal changed something"
        resumed = lab.train(TINY, out, data=data)
        lab.require_undisturbed(TINY, out, resumed, data=data)
    return max(0, 2 - resumed.resumed)


def shard_cut_under_way(lab: Lab, chance: random.Random) -> Iterator[Attempt]:
    for _ in range(4):
        yield partial(_cut_under_way, lab, chance.randint(1, 4), chance.random())


def _cut_under_way(lab: Lab, step: int, share: float) -> int:
    """Images that are gone while the run goes on give way to others; all that is saved is whole."""
    folder = _write_shards(lab)
    shard = folder / "train-0.tar"
    cut = FileCut(step, shard, int(share * shard.stat().st_size))
    with lab.place() as out:
        found = lab.train(TINY, out, cut, data=str(folder / "train-{0..1}.tar"))
        require_documented(found, (0,))
        for path in Checkpoints(out / "checkpoints").paths():
            verify(path)
        assert max(found.saved) == TINY.loop.steps
    return 0


def _write_shards(lab: Lab) -> Path:
    folder = lab.new_path()
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"train-{shard}.tar", "w") as tar:
            for number in range(5):
                data = (lab.photos / f"{number}.png").read_bytes()
                member = tarfile.TarInfo(f"{number}.png")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return folder


REFUSAL = (
    "Refused in one line that names it, with everything left as it was. With the shard, the run goes on."
)

FAULTS = (
    Fault(
        "a tenth of the images cannot be read",
        "The run goes on with others in their place, always the same ones, and counts them in its warnings.",
        some_corrupt,
    ),
    Fault("no image can be read", "Refused in one line.", all_corrupt),
    Fault("a shard is missing when a run resumes", REFUSAL, missing_shard),
    Fault("a shard is cut short when a run resumes", REFUSAL, cut_shard),
    Fault(
        "a shard is cut short under a running run",
        "The run goes on with other images in the place of those that are gone, and warns.",
        shard_cut_under_way,
    ),
)
