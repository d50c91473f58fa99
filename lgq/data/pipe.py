"""The images of one shard as a command writes it to its output, such as `curl -s URL/train-000.tar`.

The shard is read once, from its first byte to its last. All that could make it silently shorter is an
error that names the shard and how its command ended: an exit status other than 0, an output that stops
before the zeros at a tar's end, a damaged header, and anything behind the end. Images and their label
must follow each other, as WebDataset has them, for a stream has no way back.
"""

import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import IO, NamedTuple

from lgq.data.images import DataError, EncodedImage
from lgq.data.members import IMAGE_MEMBERS, LABEL_MEMBER, NAMING, member_name, parse_label, split_key

_LARGEST_MEMBER = 2**28
_LARGEST_HEADER = 2**20
_LARGEST_SKIPPED = 2**34
_EXTENDED_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_CHUNK = 2**16


class _Member(NamedTuple):
    key: str
    suffix: str
    name: str
    data: bytes


class _StrictTarInfo(tarfile.TarInfo):
    """tarfile takes a damaged or a missing header for the end of the archive; only zeros are one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_StrictTarInfo":
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(f"{error} in place of a member or the end") from error
        if info.type in _EXTENDED_HEADERS and info.size > _LARGEST_HEADER:
            raise tarfile.ReadError(f"a header claims {info.size:,} bytes, over {_LARGEST_HEADER:,}")
        return info


def piped_images(command: str, shard: str) -> Iterator[EncodedImage]:
    """Start a command of the shell, and hand out the images of the shard that it writes, in their order."""
    # Its own session: Ctrl-C is for the trainer, which may still need images to finish its step.
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    found = 0
    try:
        for image in _images(process.stdout, shard):
            found += 1
            yield image
        _require_success(process, command, shard)
    except DataError:
        raise
    except Exception as error:  # hostile headers make tarfile raise ValueError, MemoryError, ...
        while process.stdout.read(_CHUNK):
            pass
        _require_success(process, command, shard, f"no whole, uncompressed tar file ({error})")
    finally:
        _end(process)
    if not found:
        raise DataError(f"{shard}, from `{command}`, holds no image; {NAMING}.")


def _images(output: IO[bytes], shard: str) -> Iterator[EncodedImage]:
    seen: set[str] = set()
    for key, group in groupby(_members(output, shard), key=lambda member: member.key):
        members = list(group)
        if key in seen:
            rule = "the members of one key must follow each other"
            raise DataError(f"{members[0].name}: in a stream {rule}; write the shards anew with `lgq shard`.")
        seen.add(key)
        labels = [parse_label(each.data, each.name) for each in members if each.suffix == LABEL_MEMBER]
        for each in members:
            if each.suffix in IMAGE_MEMBERS:
                yield EncodedImage(each.data, labels[-1] if labels else None, each.name)


def _members(output: IO[bytes], shard: str) -> Iterator[_Member]:
    """Images and labels of a tar file that may only be read forwards."""
    with tarfile.open(fileobj=output, mode="r|", tarinfo=_StrictTarInfo, bufsize=_CHUNK) as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
            _require_near(tar, info)
            key, suffix = split_key(info.name)
            if suffix in (*IMAGE_MEMBERS, LABEL_MEMBER) and info.isreg() and not info.issparse():
                yield _Member(key, suffix, member_name(shard, info.name), _content(tar, info))
        _require_end(tar)


def _require_near(tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
    """tarfile goes on to the place of the next member though the output has long ended."""
    assert tar.fileobj is not None
    size = tar.offset - tar.fileobj.tell()
    if size > _LARGEST_SKIPPED:
        raise tarfile.ReadError(f"{info.name} claims {size:,} bytes, over {_LARGEST_SKIPPED:,}")


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    if info.size > _LARGEST_MEMBER:
        raise tarfile.ReadError(f"{info.name} claims {info.size:,} bytes, over {_LARGEST_MEMBER:,}")
    file = tar.extractfile(info)
    assert file is not None
    return file.read()


def _require_end(tar: tarfile.TarFile) -> None:
    """Read on to the end of the output, so that the command can finish."""
    assert tar.fileobj is not None
    while rest := tar.fileobj.read(_CHUNK):
        if any(rest):
            raise tarfile.ReadError("more follows behind its end: one command gives one tar file")


def _require_success(
    process: "subprocess.Popen[bytes]", command: str, shard: str, problem: str | None = None
) -> None:
    status = process.wait()
    if status or problem:
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        wrote = f" and wrote {problem}" if problem else ""
        way_out = "run it by itself to see why, or leave the shard out"
        raise DataError(f"{shard} cannot be read: `{command}` {ended}{wrote}; {way_out}.")


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    process.stdout.close()
    process.wait()
