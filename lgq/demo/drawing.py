"""Pictures of the demo."""

from pathlib import Path
from typing import NamedTuple

from lgq.files import replace_file


class DemoPicture(NamedTuple):
    """A file to look at, with a sentence about what it shows."""

    path: Path
    caption: str


class Drawing(NamedTuple):
    """The same before it is a file."""

    name: str
    caption: str
    content: bytes

    def write(self, folder: Path) -> DemoPicture:
        replace_file(folder / self.name, self.content)
        return DemoPicture(folder / self.name, self.caption)
