"""Several processes encode and draw what one does, and finish what others left unfinished."""

import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from fuzz import seeds
from process_groups import exit_codes
from tiny_run import paint_photos

from lgq.cli import main
from lgq.distributed import leave_processes, rank, world_size


def leave_late(folder: Path) -> None:
    """Let the first process work alone, while the second one waits."""
    number = rank()
    if number == 0:
        time.sleep(0.5)
        (folder / "work").write_text("done")
    leave_processes()
    (folder / f"{number}").write_text(str((folder / "work").exists() and not dist.is_initialized()))


def test_processes_leave_together_after_the_work_of_all(tmp_path):
    assert exit_codes(2, leave_late, tmp_path) == [0, 0]
    assert [(tmp_path / name).read_text() for name in ("0", "1")] == ["True", "True"]


DRAWN = 11


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generator") / "mine"
    seeds.generator().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint_photos(tmp_path_factory.mktemp("photos"), 11)


def commands(generator: Path, photos: Path) -> dict[str, list[str]]:
    """Two commands that write six files each: shards or batches of two images."""
    draw = ["sample", str(generator), "--samples", str(DRAWN), "--batch-size", "2", "--steps", "2", "--out"]
    size = ["--image-size", "4", "--shard-size", "2", "--batch-size", "1", "--workers", "0"]
    return {
        "sample": draw,
        "encode": ["encode", str(generator / "tokenizer"), "--data", str(photos), *size, "--out"],
    }


def run_until(command: list[str], out: Path, dies_at: int | None = None) -> None:
    """Run a command of `lgq`; the last process dies after it wrote `dies_at` files.

    The names of the files that this process wrote are left beside their directory.
    """
    number, last = rank(), rank() == world_size() - 1
    written: list[str] = []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        if out in Path(target).parents:
            if last and len(written) == dies_at:
                os._exit(9)
            written.append(Path(target).name)
        replace(source, target)

    os.replace = watched  # type: ignore[assignment]
    main([*command, str(out)])
    (out.parent / f"{out.name}-{number}").write_text("\n".join(written))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".partial"
    }


@pytest.mark.parametrize("name", ["sample", "encode"])
def test_unfinished_work_of_three_processes_is_finished_by_two_or_one(generator, photos, tmp_path, name):
    command = commands(generator, photos)[name]
    main([*command, str(tmp_path / "alone")])
    for finishing in (2, 1):
        out = tmp_path / f"then-{finishing}"
        assert 9 in exit_codes(3, run_until, command, out, 1)
        assert contents(out).items() < contents(tmp_path / "alone").items()
        assert exit_codes(finishing, run_until, command, out) == [0] * finishing
        assert contents(out) == contents(tmp_path / "alone")


def test_each_image_is_drawn_by_one_process(generator, photos, tmp_path):
    out = tmp_path / "drawn"
    assert exit_codes(3, run_until, commands(generator, photos)["sample"], out) == [0, 0, 0]
    shares = [(tmp_path / f"drawn-{number}").read_text().splitlines() for number in range(3)]
    assert [len(share) for share in shares] == [1 + 4, 4, 3], "the first one writes a list of the images, too"
    assert len(set().union(*shares)) == DRAWN + 1
