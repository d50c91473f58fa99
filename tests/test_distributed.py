"""Several processes agree with one: on the state of quantizers, on encoded data, on drawn images.

Work that some processes leave unfinished is finished by others.
"""

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fuzz import seeds
from process_groups import exit_codes, on_processes
from tiny_run import paint_photos

from lgq.cli import main
from lgq.distributed import leave_processes, rank, world_size
from lgq.metrics.code_usage import CodeUsage
from lgq.quantizers import LGQ, VQ

DIM, SIZE, TOKENS = 4, 12, 40


def vq_state(z: torch.Tensor, **options) -> dict[str, torch.Tensor]:
    q = VQ(DIM, SIZE, **options).double()
    for _ in range(3):
        q(z)
    return {name: q.state_dict()[name] for name in ("codebook", "counts", "sums")}


def data_init(z: torch.Tensor) -> torch.Tensor:
    q = LGQ(DIM, SIZE, init="data").double()
    q(z)
    return q.codebook.detach()


def code_counts(z: torch.Tensor) -> torch.Tensor:
    usage = CodeUsage.empty(SIZE)
    usage.update(LGQ(DIM, SIZE).double().encode(z))
    return usage.over_ranks().counts


def quantizer_states() -> dict:
    """States on this process, which holds its share of one batch."""
    z = torch.randn(TOKENS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    z = z.tensor_split(world_size())[rank()]
    return {
        "revived codes": vq_state(z, restart_below=0.9),
        "k-means": vq_state(z, init="kmeans"),
        "data init": data_init(z),
        "counts": code_counts(z),
    }


def test_quantizers_have_equal_states_on_every_rank(tmp_path):
    first, second = on_processes(2, tmp_path / "ranks", quantizer_states)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert torch.equal(first["counts"], quantizer_states()["counts"]), "counts are those of the whole batch"


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


def test_a_single_process_has_no_group_to_leave():
    leave_processes()
    assert not dist.is_initialized()


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
    draw = ["sample", str(generator), "--images", str(DRAWN), "--batch-size", "2", "--steps", "2", "--out"]
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


def test_the_first_process_draws_a_single_picture(generator, tmp_path):
    picture = tmp_path / "grid.png"
    command = ["sample", str(generator), "--count", "1", "--steps", "1", "--out"]
    assert exit_codes(2, main, [*command, str(picture)]) == [0, 0]
    main([*command, str(tmp_path / "alone.png")])
    assert picture.read_bytes() == (tmp_path / "alone.png").read_bytes()
