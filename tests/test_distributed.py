"""Several processes over loopback agree with one: on a batch of which each holds a share, on a data set
that they encode, on images that they draw; and what some of them leave undone, others finish."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from process_groups import exit_codes, on_processes

from lgq import MaskGIT, Tokenizer
from lgq.cli import main
from lgq.distributed import leave_processes, rank, sum_over_ranks, world_size
from lgq.metrics.code_usage import CodeUsage
from lgq.models.autoencoder import Backbone
from lgq.models.transformer import TransformerSettings
from lgq.quantizers import LGQ, VQ

DIM, SIZE, TOKENS = 4, 12, 40


def half_batches() -> list[torch.Tensor]:
    z = torch.randn(TOKENS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return [z[: TOKENS // 2], z[TOKENS // 2 :]]


def everything_of_a_half() -> dict:
    return everything(half_batches()[rank()])


def codebook_gradient(z: torch.Tensor, *, sync_usage: bool) -> torch.Tensor:
    """Averaged over the processes, as DistributedDataParallel does."""
    q = LGQ(DIM, SIZE, diversity_weight=1.0, diversity_scale="tokens", sync_usage=sync_usage).double()
    out = q(z)
    (out.loss + out.quantized.square().mean()).backward()
    return sum_over_ranks(q.codebook.grad) / world_size()


def running_means(z: torch.Tensor, **options) -> dict[str, torch.Tensor]:
    q = VQ(DIM, SIZE, **options).double()
    for _ in range(3):
        q(z)
    return {name: q.state_dict()[name] for name in ("codebook", "counts", "sums")}


def data_start(z: torch.Tensor) -> torch.Tensor:
    q = LGQ(DIM, SIZE, init="data").double()
    q(z)
    return q.codebook.detach()


def code_counts(z: torch.Tensor) -> torch.Tensor:
    usage = CodeUsage.empty(SIZE)
    usage.update(LGQ(DIM, SIZE).double().encode(z))
    return usage.over_ranks().counts


def everything(z: torch.Tensor) -> dict:
    return {
        "world_size": world_size(),
        "synced gradient": codebook_gradient(z, sync_usage=True),
        "gradient per rank": codebook_gradient(z, sync_usage=False),
        "means": running_means(z),
        "restarted means": running_means(z, restart_below=0.9),
        "k-means": running_means(z, init="kmeans"),
        "data start": data_start(z),
        "counts": code_counts(z),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return on_processes(2, tmp_path_factory.mktemp("ranks"), everything_of_a_half)


@pytest.fixture(scope="module")
def whole() -> dict:
    return everything(torch.cat(half_batches()))


def test_there_are_two_processes(ranks, whole):
    assert [each["world_size"] for each in ranks] == [2, 2]
    assert whole["world_size"] == 1


def test_synced_usage_has_the_gradient_of_the_whole_batch(ranks, whole):
    for each in ranks:
        torch.testing.assert_close(each["synced gradient"], whole["synced gradient"])


def test_usage_per_rank_is_another_loss_than_that_of_the_whole_batch(ranks, whole):
    difference = ranks[0]["gradient per rank"] - whole["gradient per rank"]
    assert float(difference.abs().max()) > 1e-3


def test_running_means_over_ranks_are_those_of_the_whole_batch(ranks, whole):
    for each in ranks:
        torch.testing.assert_close(each["means"], whole["means"])


@pytest.mark.parametrize("kind", ["means", "restarted means", "k-means"])
def test_running_means_are_equal_on_every_rank(ranks, kind):
    torch.testing.assert_close(ranks[0][kind], ranks[1][kind], rtol=0, atol=0)


def test_codes_that_start_from_data_start_alike_on_every_rank(ranks):
    assert torch.equal(ranks[0]["data start"], ranks[1]["data start"])


def test_usage_counts_of_all_ranks_are_those_of_the_whole(ranks, whole):
    for each in ranks:
        assert torch.equal(each["counts"], whole["counts"])


def leave_late(folder: Path) -> None:
    """The first process has work of its own, for which the second one must wait."""
    number = rank()
    if number == 0:
        time.sleep(0.5)
        (folder / "work").write_text("done")
    leave_processes()
    (folder / f"{number}").write_text(str((folder / "work").exists() and not dist.is_initialized()))


def test_processes_leave_together_once_the_work_of_all_is_done(tmp_path):
    assert exit_codes(2, leave_late, tmp_path) == [0, 0]
    assert [(tmp_path / name).read_text() for name in ("0", "1")] == ["True", "True"]


def test_one_process_leaves_nothing():
    leave_processes()
    assert not dist.is_initialized()


BACKBONE = Backbone(
    widths=(8, 8), blocks=1, attention_heads=0, groups=4, latent_channels=DIM, latent_groups=2
)
SIDE, PHOTOS, DRAWN = 8, 11, 11


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32)
    tokenizer = Tokenizer(BACKBONE, "lgq", SIZE)
    folder = tmp_path_factory.mktemp("generator") / "mine"
    maskgit = MaskGIT(tokenizer, image_size=SIDE, classes=("cat", "dog", "fox"), transformer=small)
    maskgit.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(PHOTOS):
        pixels = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return folder


def commands(generator: Path, photos: Path) -> dict[str, list[str]]:
    """Each makes six files: shards of two images, or batches of two."""
    draw = ["sample", str(generator), "--images", str(DRAWN), "--batch-size", "2", "--steps", "2", "--out"]
    size = ["--image-size", str(SIDE), "--shard-size", "2", "--batch-size", "1", "--workers", "0"]
    return {
        "sample": draw,
        "encode": ["encode", str(generator / "tokenizer"), "--data", str(photos), *size, "--out"],
    }


def run_until(command: list[str], out: Path, dies_at: int | None = None) -> None:
    """A command of `lgq`, in which the last process dies instead of writing its so-many-th file.

    Leaves the names of the files that this process wrote beside their directory.
    """
    number, last = rank(), rank() == world_size() - 1
    written: list[str] = []
    plain = os.replace

    def watched(source: Path, target: Path) -> None:
        if out in Path(target).parents:
            if last and len(written) == dies_at:
                os._exit(9)
            written.append(Path(target).name)
        plain(source, target)

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
def test_what_three_processes_leave_undone_two_or_one_finish_as_one_would_have(
    generator, photos, tmp_path, name
):
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
    assert [len(share) for share in shares] == [1 + 4, 4, 3], "the first one notes what is drawn, too"
    assert len(set().union(*shares)) == DRAWN + 1


def test_of_several_processes_the_first_one_draws_a_picture(generator, tmp_path):
    picture = tmp_path / "grid.png"
    command = ["sample", str(generator), "--count", "1", "--steps", "1", "--out"]
    assert exit_codes(2, main, [*command, str(picture)]) == [0, 0]
    main([*command, str(tmp_path / "alone.png")])
    assert picture.read_bytes() == (tmp_path / "alone.png").read_bytes()
