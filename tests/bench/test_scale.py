"""The laws of the model of scale; its counts against the code that they are of, and two real processes."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from leftovers import NO_TENSORBOARD
from PIL import Image
from process_groups import on_processes

from lgq.bench import scale
from lgq.bench.scale import AGREEMENTS, ScaleBenchmark, fit, forecasts
from lgq.bench.scale_counts import Counts, counts_of, generator_operations
from lgq.bench.scale_local import measure_local
from lgq.bench.scale_model import (
    Cluster,
    Encoding,
    Images,
    Training,
    encoding_forecast,
    ring_bytes,
    summing,
    training_forecast,
)
from lgq.bench.scale_turns import Point, Turns, measure_turns, written_by
from lgq.cli import main
from lgq.data import FolderDataset
from lgq.distributed import world_size
from lgq.models.autoencoder import Backbone
from lgq.runs import named_run
from lgq.training.losses import LossWeights
from lgq.training.recipe import TokenizerRun
from lgq.training.stopping import LoopSettings
from lgq.training.tokenizer import train_tokenizer

CLUSTER = Cluster()
IMAGES = Images(count=10**6, bytes=1e5, decoded=100.0)
TRAINING = Training(
    images=IMAGES,
    batch_size=8,
    forward=5e11,
    backward=9e11,
    gradients=116_000_000,
    late_gradients=11_000_000,
    late_sums=13,
    agreements=3,
    checkpoint=400_000_000,
    checkpoint_every=5000,
)
ENCODING = Encoding(images=IMAGES, forward=2e11, shard_size=4096, tokens=512)
COUNTS = Counts(
    encoder=2e11,
    forward=5e11,
    backward=9e11,
    gradients=116_000_000,
    late_gradients=11_000_000,
    late_sums=13,
    checkpoint=400_000_000,
    tokens=512,
)
NUMBERS = (1, 2, 3, 7, 8, 9, 16, 64, 1000, 4096)


def test_one_process_communicates_nothing():
    alone = training_forecast(TRAINING, 1, CLUSTER)
    assert (alone.communication, alone.exposed) == (0, 0)
    assert ring_bytes(10**9, 1) == summing(10**9, 5, 1, CLUSTER) == 0


@pytest.mark.parametrize("gpus", NUMBERS)
def test_time_is_never_below_the_share_of_the_compute(gpus):
    rate = CLUSTER.peak * CLUSTER.utilisation
    for work, forecast, operations in (
        (TRAINING, training_forecast(TRAINING, gpus, CLUSTER), TRAINING.forward + TRAINING.backward),
        (ENCODING, encoding_forecast(ENCODING, gpus, CLUSTER), ENCODING.forward),
    ):
        least = work.images.count * operations / rate / gpus / 3600
        assert forecast.hours >= least * (1 - 1e-12)
        assert 0 < forecast.efficiency <= 1
        assert forecast.exposed <= forecast.communication


def test_a_time_is_the_sum_of_its_parts():
    found = training_forecast(TRAINING, 64, CLUSTER)
    steps = IMAGES.count / (64 * 8)
    assert found.nodes == 8
    seconds = max(found.compute, found.reading) + found.exposed + found.other
    assert found.hours == pytest.approx(steps * seconds / 3600)
    assert found.other == pytest.approx(400e6 / 1e9 / 5000)


def test_what_the_backward_pass_does_not_hide_is_exposed():
    slow = replace(CLUSTER, network=1e8, latency=0.0, host_latency=0.0)
    found = training_forecast(replace(TRAINING, late_gradients=0, late_sums=0), 16, slow)
    sent = 2 * 15 / 16 * 116e6 / 1e8
    backward = 8 * 9e11 / (CLUSTER.peak * CLUSTER.utilisation)
    assert found.communication == pytest.approx(sent)
    assert found.exposed == pytest.approx(sent - backward)
    fast = training_forecast(
        replace(TRAINING, late_gradients=0, late_sums=0), 16, replace(slow, network=1e12)
    )
    assert fast.exposed == pytest.approx(fast.communication / 5), "the last of five buckets is never hidden"


def test_late_gradients_and_agreements_are_not_hidden():
    found = training_forecast(TRAINING, 16, CLUSTER)
    without = training_forecast(replace(TRAINING, late_gradients=0, late_sums=0, agreements=0), 16, CLUSTER)
    late = 2 * 15 / 16 * 11e6 / CLUSTER.network + 8 * (13 * CLUSTER.latency + 3 * CLUSTER.host_latency)
    assert found.exposed - without.exposed == pytest.approx(late)


def test_a_ring_is_as_fast_as_its_slowest_link():
    within, between = (summing(1e9, 0, gpus, CLUSTER) for gpus in (8, 9))
    assert within == pytest.approx(2 * 7 / 8 * 1e9 / CLUSTER.link)
    assert between == pytest.approx(2 * 8 / 9 * 1e9 / CLUSTER.network)


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ({}, "compute"),
        ({"storage": 1e6}, "reading"),
        ({"network": 1e7}, "communication"),
    ],
)
def test_what_takes_longest_is_named(change, bound):
    assert training_forecast(TRAINING, 64, replace(CLUSTER, **change)).bound == bound


def test_reading_is_that_of_the_decoders_or_that_of_the_files_whichever_is_slower():
    assert IMAGES.reading(1, CLUSTER) == pytest.approx(1 / 400)
    assert IMAGES.reading(10**4, CLUSTER) == pytest.approx(10**4 * 1e5 / 10e9)


def test_encoding_waits_for_the_process_with_most_shards_and_for_the_first_one():
    some = replace(ENCODING, images=replace(IMAGES, count=10 * 4096))
    alone = 2 * 10 * 4096 * 512 / CLUSTER.disk
    for gpus, busiest in ((1, 10), (3, 4), (10, 1), (100, 1)):
        found = encoding_forecast(some, gpus, CLUSTER)
        each = max(found.compute, found.reading)
        assert found.hours * 3600 == pytest.approx(busiest * 4096 * each + alone)


def test_a_fit_finds_what_points_were_made_of():
    made = scale.Fit(contention=1.5, fixed=0.2, image=0.05, exchange=0.03)
    sizes = (1, 4, 32)
    blank = [
        Point(turn=turn, batch_size=n, seconds=0, wall=0)
        for n in sizes
        for turn in ("alone", "beside", "together")
    ]
    points = [replace(point, seconds=made.seconds(point)) for point in blank]
    found = fit(points)
    for name, value in vars(made).items():
        assert getattr(found, name) == pytest.approx(value), name
    assert [found.seconds(point) for point in points] == pytest.approx([point.seconds for point in points])


def test_the_batch_of_the_paper_is_divided_and_no_image_is_cut():
    found = forecasts(ScaleBenchmark(gpus=(1, 3, 4, 32, 64)), COUNTS, 100.0)
    assert [(row.gpus, row.images_per_step) for row in found["paper"]] == [(1, 32), (4, 32), (32, 32)]
    assert [row.images_per_step for row in found["training"]] == [8, 24, 32, 256, 512]
    assert found["slow"][2].hours > found["paper"][2].hours


def sums_and_their_bytes(numbers: int) -> dict[str, int]:
    payload = torch.ones(numbers)
    dist.all_reduce(payload)  # connects
    dist.barrier()
    calls = 8
    sent = written_by(lambda: [dist.all_reduce(payload) for _ in range(calls)])
    return {"world_size": world_size(), "sent": sent // calls}


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system counts no bytes of a process")
@pytest.mark.parametrize("processes", [2, 3])
def test_a_process_sends_the_bytes_of_the_formula(processes, tmp_path):
    for found in on_processes(processes, tmp_path, sums_and_their_bytes, 600_000):
        assert found["world_size"] == processes
        assert found["sent"] == pytest.approx(ring_bytes(4 * 600_000, processes), rel=0.01)


SMALL = TokenizerRun(
    codebook_size=16,
    backbone=Backbone(
        widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2
    ),
    image_size=24,
    batch_size=1,
    workers=0,
    loss=LossWeights(lpips=0.0, gan=0.0),
    validation_images=2,
    best_by="l1",
)
ADVERSARIAL = replace(SMALL, loss=LossWeights(lpips=0.0, gan=0.1, discriminator_start=0))


def sums_of_a_training(photos: Path, out: Path) -> list[int]:
    """Calls for sums over the processes' CPUs in trainings of two and of five steps."""
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    found = []
    plain = dist.all_reduce
    for steps in (2, 5):
        calls: list[int] = []

        def counted(x: torch.Tensor, *args: object, calls: list[int] = calls, **kwargs: object) -> object:
            calls.append(x.numel() * x.element_size())
            return plain(x, *args, **kwargs)

        dist.all_reduce = counted  # type: ignore[assignment]
        loop = LoopSettings(steps=steps, log_every=100, validate_every=100, checkpoint_every=100)
        run = replace(SMALL, loop=loop)
        train_tokenizer(run, FolderDataset(photos), None, out / str(steps))
        found.append(len([size for size in calls if size == 8]))
        dist.all_reduce = plain
    return found


def test_the_loop_agrees_as_often_in_a_step_as_the_model_says(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(3):
        Image.new("RGB", (24, 24), (80 * i, 100, 30)).save(photos / f"{i}.png")
    for two, five in on_processes(2, tmp_path / "ranks", sums_of_a_training, photos, tmp_path):
        assert five - two == 3 * AGREEMENTS


def test_counts_are_those_of_the_networks():
    assert counts_of(SMALL).late_gradients == counts_of(SMALL).late_sums == 0
    found = counts_of(ADVERSARIAL)
    assert found.tokens == 12 * 12 * 2
    assert found.late_sums == 13
    assert found.late_gradients == 4 * 2_765_633
    paper = counts_of(named_run("imagenet256-lgq"))
    assert paper.gradients == 4 * (27_991_235 + 16_384 * 64)
    assert paper.checkpoint == 12 * (27_991_235 + 16_384 * 64 + 2_765_633)
    assert paper.tokens == 512
    # A stem of 3x3 convolutions at full size, and less of everything behind it.
    assert paper.forward > paper.encoder > 2 * 256**2 * 9 * 128 * 128 * 4
    assert 1.5 < paper.backward / paper.forward < 2


def test_operations_of_a_generator_are_those_of_its_formula():
    forward, backward = generator_operations("pocket", codes=1024, tokens=64)
    width, hidden, layers, places = 192, 768, 3, 65
    products = places * layers * (4 * width**2 + 2 * width * hidden)
    attention = layers * 2 * places**2 * width
    head = 64 * (width**2 + width * 1024)
    assert forward == pytest.approx(2 * (products + attention + head), rel=0.02)
    assert backward == pytest.approx(2 * forward, rel=0.02)


def test_a_checkpoint_has_the_bytes_that_were_counted():
    found = measure_local(ADVERSARIAL, images=2, rounds=1)
    assert found.checkpoint_bytes == pytest.approx(counts_of(ADVERSARIAL).checkpoint, rel=0.05)
    assert found.shard_bytes > 2 * 12 * 12
    assert min(found.decoded, found.encoded) > 0


def test_two_processes_hand_over_each_gradient_once_and_send_what_the_ring_says():
    turns = measure_turns(SMALL, (1, 2), steps=1, rounds=1)
    assert turns.summed_bytes == counts_of(SMALL).gradients
    # So few bytes go with as many for each message.
    assert turns.sent_bytes is None or 1 <= turns.sent_bytes / turns.summed_bytes < 1.5
    kinds = {(point.turn, point.batch_size) for point in turns.points}
    assert kinds == {(turn, size) for turn in ("alone", "beside", "together") for size in (1, 2)}
    assert all(point.seconds > 0 for point in turns.points)


def test_the_command_prints_tables_and_json_and_draws(monkeypatch, tmp_path, capsys):
    points = [
        Point(turn=turn, batch_size=n, seconds=n * slower, wall=9.0)
        for n in (1, 2)
        for turn, slower in (("alone", 1.0), ("beside", 1.5), ("together", 1.75))
    ]
    turns = Turns(points=points, summing=0.01, summed_bytes=1000, sent_bytes=None)
    monkeypatch.setattr(scale, "measure_turns", lambda *args, **how: turns)
    monkeypatch.setattr(scale, "named_run", lambda name: SMALL)
    plot = tmp_path / "new" / "plot.png"
    main(["bench", "scale", "--images", "2", "--rounds", "1", "--json", "--plot", str(plot),
          "--cluster.utilisation", "0.4", "--gpus", "1", "4", "64", "--forecast", "pocket-lgq"])  # fmt: skip
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record["settings"]["cluster"]["utilisation"] == 0.4
    assert [row["gpus"] for row in record["encoding"]] == [1, 4, 64]
    assert record["training"][0]["images_per_step"] == 1
    assert [point["fitted"] for point in record["turns"]["points"]][:2] == pytest.approx([1.0, 1.5])
    assert "Training on ImageNet-1k" in printed.err
    with Image.open(plot) as picture:
        assert picture.size[0] > 1000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_sizes": (8,)}, "batch_sizes must be two or more"),
        ({"batch_sizes": (8, 8)}, "batch_sizes must be two or more"),
        ({"gpus": (0, 1)}, "gpus must be numbers from 1 on"),
        ({"gpus": ()}, "gpus must be numbers from 1 on"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ScaleBenchmark(**settings)


@pytest.mark.parametrize("name", ["peak", "utilisation", "link", "network", "storage", "disk", "workers"])
def test_a_cluster_without_any_of_its_parts_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        Cluster(**{name: 0})
