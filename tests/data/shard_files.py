"""Small shards for tests: pictures of one shade, which is their label too."""

import io
import tarfile
from functools import cache
from pathlib import Path

from PIL import Image

from lgq.data.stream import PipeDataset


@cache
def picture(shade: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (5, 5), (shade, shade, shade)).save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, members: list[tuple[str, bytes] | tarfile.TarInfo], **options: object) -> Path:
    """Members are (name, bytes), or a TarInfo without content."""
    with tarfile.open(path, "w", **options) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return path


def write_shard(path: Path, first: int, count: int) -> Path:
    pairs = [[(f"{i:04d}.png", picture(i)), (f"{i:04d}.cls", b"%d" % i)] for i in range(first, first + count)]
    return write_tar(path, [member for pair in pairs for member in pair])


def piped_shards(folder: Path, sizes: list[int], *, buffer: int) -> PipeDataset:
    """A stream of shards of so many images, numbered through, that `cat` writes."""
    for number, count in enumerate(sizes):
        write_shard(folder / f"t-{number}.tar", sum(sizes[:number]), count)
    commands = [f"cat '{folder}/t-{number}.tar'" for number in range(len(sizes))]
    return PipeDataset(commands, buffer=buffer)
