"""Images that are missing or cannot be read."""

import io
import random
import shutil
import signal
import tarfile
from pathlib import Path

from tiny_run import TINY

from faults.children import REFUSED, STOPPED
from faults.injections import FileCut, SignalAtStep
from faults.lab import Fault, Lab, contents, require_documented, times
from lgq.training.checkpoint import Checkpoints, read_manifest

SECOND_STEP = SignalAtStep(2, (signal.SIGTERM,))


def some_corrupt(lab: Lab, kind: str, killed: SignalAtStep) -> int:
    """A tenth of the images cannot be read: the run continues, and a killed one ends as one that was not."""
    data = lab.kept(f"photos with {kind}", lambda: _with_corrupt(lab, kind, share=0.1))
    attempt = lab.survives(TINY, killed, data=str(data))
    noted = [warning for warning in attempt.resumed.warnings if "broken image no. 1 in" in warning]
    assert noted, attempt.resumed.warnings
    assert all("0.png" in warning for warning in noted), noted
    return attempt.lost


def all_corrupt(lab: Lab, kind: str) -> int:
    data = lab.kept(f"nothing but {kind}", lambda: _with_corrupt(lab, kind, share=1.0))
    with lab.place() as out:
        end = lab.train(TINY, out, data=str(data))
        require_documented(end, (REFUSED,))
        assert "none of 10 images can be read" in end.error, end.error
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


def without_shard(lab: Lab, number: int, share: float | None) -> int:
    """A shard is gone, or has lost its end, when a run resumes; with the shard, it continues."""
    folder = lab.kept("shards", lambda: _write_shards(lab))
    data, shard = str(folder / "train-{0..1}.tar"), folder / f"train-{number}.tar"
    whole = shard.read_bytes()
    with lab.place() as out:
        assert lab.train(TINY, out, SECOND_STEP, data=data).code == STOPPED
        before = contents(out)
        shard.unlink()
        if share is not None:
            # Some of the zeros at the end may go: they hold no image.
            shard.write_bytes(whole[: int(share * (len(whole.rstrip(b"\0")) - 1))])
        end = lab.train(TINY, out, data=data)
        shard.write_bytes(whole)
        require_documented(end, (REFUSED,))
        assert shard.name in end.error or "images` (was" in end.error, end.error
        assert contents(out) == before, "the refusal changed something"
        return lab.resume(TINY, out, saved=2, data=data)


def shard_cut_while_training(lab: Lab, step: int, share: float) -> int:
    """Images that disappear during training are replaced by others; everything saved is whole."""
    folder = _write_shards(lab)
    shard = folder / "train-0.tar"
    cut = FileCut(step, shard, int(share * shard.stat().st_size))
    with lab.place() as out:
        end = lab.train(TINY, out, cut, data=str(folder / "train-{0..1}.tar"))
        require_documented(end, (0,))
        for path in Checkpoints(out / "checkpoints").paths():
            read_manifest(path).verify(path)
        assert max(end.saved) == TINY.loop.steps
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


ONE_LINE = "Refused in one line that names it, with everything left as it was. With it, the run continues."
KINDS = ("cut", "text", "empty")

FAULTS = (
    Fault(
        "a tenth of the images cannot be read",
        "The run continues with others in their place, always the same ones, and counts them in warnings.",
        some_corrupt,
        lambda _, c: [(kind, SignalAtStep(c.randint(1, 6), (signal.SIGKILL,))) for kind in KINDS],
    ),
    Fault("no image can be read", "Refused in one line.", all_corrupt, lambda *_: [(k,) for k in KINDS]),
    Fault(
        "a shard is missing when a run resumes", ONE_LINE, without_shard, lambda *_: [(0, None), (1, None)]
    ),
    Fault(
        "a shard is cut short when a run resumes",
        ONE_LINE,
        without_shard,
        times(10, lambda chance: chance.randrange(2), random.Random.random),
    ),
    Fault(
        "a shard is cut short during training",
        "The run continues with other images in the place of those that are gone, and warns.",
        shard_cut_while_training,
        times(4, lambda chance: chance.randint(1, 4), random.Random.random),
    ),
)
