"""Two processes over loopback agree with one process that holds both halves of the batch."""

import socket
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lgq.distributed import leave_processes, sum_over_ranks, world_size
from lgq.evaluation.codebook import CodeUsage
from lgq.quantizers import LGQ, VQ

DIM, SIZE, TOKENS = 4, 12, 40


def half_batches() -> list[torch.Tensor]:
    z = torch.randn(TOKENS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return [z[: TOKENS // 2], z[TOKENS // 2 :]]


def in_process(rank: int, port: int, task, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        torch.save(task(half_batches()[rank]), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def on_two_processes(task, folder: Path) -> list:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(in_process, args=(port, task, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


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
    usage = CodeUsage.of(SIZE)
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
    return on_two_processes(everything, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def whole() -> dict:
    return everything(torch.cat(half_batches()))


def test_there_are_two_processes(ranks, whole):
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    assert whole["world_size"] == 1


def test_synced_usage_has_the_gradient_of_the_whole_batch(ranks, whole):
    for rank in ranks:
        torch.testing.assert_close(rank["synced gradient"], whole["synced gradient"])


def test_usage_per_rank_is_another_loss_than_that_of_the_whole_batch(ranks, whole):
    difference = ranks[0]["gradient per rank"] - whole["gradient per rank"]
    assert float(difference.abs().max()) > 1e-3


def test_running_means_over_ranks_are_those_of_the_whole_batch(ranks, whole):
    for rank in ranks:
        torch.testing.assert_close(rank["means"], whole["means"])


@pytest.mark.parametrize("kind", ["means", "restarted means", "k-means"])
def test_running_means_are_equal_on_every_rank(ranks, kind):
    torch.testing.assert_close(ranks[0][kind], ranks[1][kind], rtol=0, atol=0)


def test_codes_that_start_from_data_start_alike_on_every_rank(ranks):
    assert torch.equal(ranks[0]["data start"], ranks[1]["data start"])


def test_usage_counts_of_all_ranks_are_those_of_the_whole(ranks, whole):
    for rank in ranks:
        assert torch.equal(rank["counts"], whole["counts"])


def leave_late(rank: int, port: int, folder: str) -> None:
    """The first process has work of its own, for which the second one must wait."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    if rank == 0:
        time.sleep(0.5)
        Path(folder, "work").write_text("done")
    leave_processes()
    Path(folder, f"{rank}").write_text(str(Path(folder, "work").exists() and not dist.is_initialized()))


def test_processes_leave_together_once_the_work_of_all_is_done(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(leave_late, args=(port, str(tmp_path)), nprocs=2)
    assert [(tmp_path / name).read_text() for name in ("0", "1")] == ["True", "True"]


def test_one_process_leaves_nothing():
    leave_processes()
    assert not dist.is_initialized()
