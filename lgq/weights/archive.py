"""One member of a zip or tar archive, read into memory: nothing is unpacked to the disk."""

import tarfile
import zipfile
from io import BytesIO

from lgq.files import DamagedFileError, Fingerprint
from lgq.weights.errors import WeightsError


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
