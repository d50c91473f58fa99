"""benchmarks/scale.py: the laws of its formulas, and its counts; the commands on docs/scaling.md parse."""

import re
import runpy
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_docs import blocks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lgq import cli
from lgq.models.discriminator import PatchDiscriminator
from lgq.models.lpips import LPIPS
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer
from lgq.training.losses import Objective

ROOT = Path(__file__).parent.parent
scale = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "scale.py")))
CLUSTER, WORK = scale.Cluster(), scale.Work()
IMAGES = 10**6


def training(gpus, cluster=CLUSTER, **changes):
    return scale.forecast_training(replace(WORK, **changes), cluster, gpus, 8, IMAGES)


def test_one_gpu_sends_nothing_and_only_computes():
    assert training(1).communication == scale.ring_bytes(10**9, 1) == CLUSTER.all_reduce(10**9, 5, 1) == 0
    hours = IMAGES / (CLUSTER.peak * CLUSTER.utilisation) / 3600
    assert training(1).hours == pytest.approx(hours * (WORK.forward + WORK.backward))
    assert all(training(gpus).hours > training(1).hours / gpus for gpus in (2, 7, 9, 4096))


def test_the_backward_pass_hides_all_but_the_last_bucket_late_gradients_and_agreements():
    cluster = replace(CLUSTER, network=1e8, latency=0.0, host_latency=0.0)
    sent = 2 * 15 / 16 * WORK.gradients / 1e8
    backward = 8 * cluster.compute(WORK.backward)
    assert training(16, cluster, late_gradients=0).communication == pytest.approx(sent - backward)
    fast = training(16, replace(cluster, network=25e9), late_gradients=0)
    assert fast.communication == pytest.approx(2 * 15 / 16 * WORK.gradients / 25e9 / 5)
    late = 2 * 15 / 16 * WORK.late_gradients / CLUSTER.network + 8 * WORK.late_sums * CLUSTER.latency
    without = training(16, replace(CLUSTER, host_latency=0.0), late_gradients=0, late_sums=0)
    added = training(16).communication - without.communication
    assert added == pytest.approx(late + 8 * scale.AGREEMENTS * CLUSTER.host_latency)


@pytest.mark.parametrize(
    ("change", "bound"), [({}, "compute"), ({"storage": 1e6}, "reading"), ({"network": 1e7}, "communication")]
)
def test_the_longest_part_is_named(change, bound):
    assert training(64, replace(CLUSTER, **change)).bound == bound


def test_encoding_waits_for_the_process_with_most_shards_and_then_for_the_first():
    for gpus, busiest in ((1, 10), (3, 4), (10, 1), (100, 1)):
        encoding = scale.forecast_encoding(WORK, CLUSTER, gpus, 10 * 4096)
        last = 2 * 10 * 4096 * WORK.tokens / CLUSTER.disk
        assert encoding.hours * 3600 == pytest.approx(busiest * 4096 * encoding.seconds + last)


def operations(call):
    # Attention as two products: torch does not count those of the fused kernels.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        result = call()
    return result, counter.get_total_flops()


def test_work_is_that_of_the_networks():
    run = named_run("imagenet256-lgq")
    with torch.device("meta"):
        tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size)
        discriminator = PatchDiscriminator()
        objective = Objective(run.loss, perceptual=LPIPS(), discriminator=discriminator)
        images, step = torch.zeros(1, 3, run.image_size, run.image_size), run.loss.discriminator_start

        def losses(output):
            loss = objective.tokenizer_loss(images, output, torch.zeros(()), step=step)
            return loss.total + objective.discriminator_loss(images, output).total

        latents, encoding = operations(lambda: tokenizer.encoder(images))
        output, decoding = operations(lambda: tokenizer.decoder(latents))
        loss, comparing = operations(lambda: losses(output))
        _, backward = operations(loss.backward)
    # One product of all vectors and codes finds the nearest code; learning takes five more.
    product = 2 * 16**2 * run.codebook_size * run.backbone.latent_channels
    forward = encoding + product + decoding + comparing
    assert (WORK.encoder, WORK.forward, WORK.backward) == (
        encoding + product,
        forward,
        backward + 5 * product,
    )
    sizes = [sum(4 * p.numel() for p in network.parameters()) for network in (tokenizer, discriminator)]
    assert (WORK.gradients, WORK.late_gradients) == tuple(sizes)
    assert (WORK.late_sums, WORK.batch_size) == (len(list(discriminator.parameters())), run.batch_size)


def shown_commands() -> list[list[str]]:
    """Arguments of each `lgq` command on docs/scaling.md, by itself or behind torchrun and Slurm."""
    commands = []
    for line in "".join(blocks(ROOT / "docs" / "scaling.md", "sh")).splitlines():
        words, chosen = shlex.split(line), re.match(r"LGQ_COMMAND=(\w+)", line)
        if "-m" in words:
            commands.append(words[words.index("-m") + 2 :])
        elif "docs/train.sbatch" in words:
            rest = words[words.index("docs/train.sbatch") + 1 :]
            commands.append([chosen[1] if chosen else "train", *rest])
        elif "--wrap" in words:
            commands.append(shlex.split(words[-1].replace("$SLURM_ARRAY_TASK_ID", "3"))[1:])
    return commands


def test_commands_of_the_page_parse():
    assert {words[0] for words in shown_commands()} == {"train", "encode", "evaluate", "sample", "experiment"}
    for words in shown_commands():
        assert cli.parse(words)
