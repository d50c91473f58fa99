"""Write requirements.lock: every package of a full installation, with its version and the hash of its file.

    python scripts/lock.py

pip resolves the dependencies as constraints.txt pins them, and reports the files that it would install here
with their sha256. Nothing is installed. The lock does not record where a file comes from: its hash
identifies it.
"""

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
EXTRAS = "dev,bench,datasets,diffusers,kernels,umap,viewer,wandb"
_HEADER = """\
# Every package of `.[{extras}]` for {place}, with version and hash.
# Written by `python scripts/lock.py`; install with `pip install --require-hashes -r requirements.lock`.
"""


def main() -> None:
    lines = sorted(line_of(package) for package in resolved() if "archive_info" in package["download_info"])
    place = f"CPython {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
    LOCK.write_text(_HEADER.format(extras=EXTRAS, place=place) + "".join(lines))
    print(f"{len(lines)} packages in {LOCK.name}")


def resolved() -> list[dict[str, Any]]:
    """Packages that pip would install, including the project itself, which is a directory."""
    options = ("--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    wanted = ("--constraint", str(ROOT / "constraints.txt"), f"{ROOT}[{EXTRAS}]")
    command = [sys.executable, "-m", "pip", "install", *options, *wanted]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    packages: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return packages


def line_of(package: dict[str, Any]) -> str:
    name = package["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
    # Without a local part such as +cpu, as in constraints.txt: the hash identifies the build.
    version = package["metadata"]["version"].partition("+")[0]
    digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


if __name__ == "__main__":
    main()
