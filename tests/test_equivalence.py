"""One process with a batch of 2B and two with B each: equal gradients for losses that are means over tokens.

For the others, the difference is that of the formula in docs/scaling.md.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from process_groups import on_processes
from quantizer_family import DIM, SIZE, VARIANTS
from tiny_run import TINY, paint_photos
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lgq.data import FolderDataset
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.quantizers import QUANTIZERS, Quantizer, Residual, build_quantizer
from lgq.training.losses import LossWeights
from lgq.training.settings import LoopSettings, TokenizerRun
from lgq.training.tokenizer_trainer import TokenizerTrainer

TOKENS, STEPS, RATE = 48, 3, 0.5
MORE = {
    "lgq without diversity": ("lgq", {"diversity_weight": 0.0, "peak_weight": 1.0}),
    "lgq synced": ("lgq", {"diversity_weight": 1.0, "sync_usage": True}),
    "lgq synced, token scale": (
        "lgq",
        {"diversity_weight": 1.0, "sync_usage": True, "diversity_scale": "tokens"},
    ),
    "lgq": ("lgq", {"diversity_weight": 1.0}),
    "lgq from data": ("lgq", {"init": "data"}),
    "vq from data": ("vq", {"init": "kmeans", "restart_below": 0.9}),
}
EQUAL = ["lgq without diversity", "lgq synced", "lgq synced, token scale", "ibq plain", "vq", "rotvq"]
EQUAL += ["fsq", "fsq levels", "lfq plain", "simvq", "simvq linear", "residual"]
PER_RANK = ["lgq", "ibq", "lfq", "lgq from data", "vq from data"]


def quantizer(name: str) -> Quantizer:
    if name == "residual":
        return Residual([quantizer(stage) for stage in ("vq", "fsq", "simvq")])
    kind, options = (VARIANTS | MORE)[name]
    return build_quantizer(kind, DIM, SIZE, seed=0, **options).double()


def vectors(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(TOKENS, DIM, dtype=torch.float64, generator=generator)


def learn(name: str) -> dict:
    """Do some steps of gradient descent, with gradients averaged as by DistributedDataParallel."""
    torch.manual_seed(0)
    q, gradients, terms = quantizer(name).train(), {}, {}
    for step in range(STEPS):
        z, target = (vectors(seed).tensor_split(world_size())[rank()] for seed in (step, step + 100))
        z = z.clone().requires_grad_()
        out = q(z)
        loss = (out.quantized - target).square().mean() + out.loss
        loss.backward()
        gradients[f"{step} z"] = z.grad / world_size()
        terms[step] = {term: sum_over_ranks(value) / world_size() for term, value in out.terms.items()}
        for parameter_name, parameter in q.named_parameters():
            mean = sum_over_ranks(parameter.grad) / world_size()
            gradients[f"{step} {parameter_name}"], parameter.grad = mean, None
            parameter.data -= RATE * mean
    state = {key: value for key, value in q.state_dict().items() if value.is_floating_point()}
    return {"gradients": gradients, "terms": terms, "state": state}


def learn_all() -> dict:
    return {name: learn(name) for name in (*EQUAL, *PER_RANK)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return on_processes(2, tmp_path_factory.mktemp("ranks"), learn_all)


@pytest.fixture(scope="module")
def whole() -> dict:
    return learn_all()


def of_both(ranks: list[dict], name: str) -> dict[str, Tensor]:
    """Gradients of parameters, which both processes share, and of the vectors of both, concatenated."""
    first, second = (states[name]["gradients"] for states in ranks)
    return {key: torch.cat([first[key], second[key]]) if key.endswith(" z") else first[key] for key in first}


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_follow_the_gradients_of_one_with_both_batches(ranks, whole, name):
    torch.testing.assert_close(of_both(ranks, name), whole[name]["gradients"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ranks[0][name]["state"], whole[name]["state"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", EQUAL + PER_RANK)
def test_both_processes_learn_the_same_bits(ranks, name):
    torch.testing.assert_close(ranks[0][name]["state"], ranks[1][name]["state"], rtol=0, atol=0)


def usage_of(name: str, z: Tensor) -> Tensor:
    """Mean soft assignment, by the plain formula."""
    q = quantizer(name)
    if name == "lgq":
        return torch.softmax(-torch.cdist(z, q.codebook).square(), dim=1).mean(0)
    if name == "ibq":
        return torch.softmax(z @ q.codebook.T / 0.01, dim=1).mean(0)
    return torch.softmax(200 * q.project_in(z) @ q.codebook.double().T, dim=1).mean(0)


def test_diversity_per_process_is_larger_by_the_variance_of_usage_between_processes(ranks, whole):
    shares = torch.stack([usage_of("lgq", half) for half in vectors(0).tensor_split(2)])
    variance = SIZE * shares.var(dim=0, correction=0).sum()
    difference = ranks[0]["lgq"]["terms"][0]["diversity"] - whole["lgq"]["terms"][0]["diversity"]
    torch.testing.assert_close(difference, variance, rtol=1e-9, atol=0)
    assert variance > 0.01


@pytest.mark.parametrize(("name", "offset"), [("ibq", 1e-5), ("lfq", 0.0)])
def test_batch_entropy_per_process_is_smaller_by_the_divergence_of_usages(ranks, whole, name, offset):
    shares = torch.stack([usage_of(name, half) for half in vectors(0).tensor_split(2)])
    ratio = (shares + offset) / (shares.mean(0) + offset)
    divergence = (shares * ratio.clamp_min(1e-300).log()).sum(1).mean()  # Jensen-Shannon at offset 0
    difference = whole[name]["terms"][0]["batch_entropy"] - ranks[0][name]["terms"][0]["batch_entropy"]
    torch.testing.assert_close(difference, divergence, rtol=1e-9, atol=1e-9)
    assert divergence > 0.01


RUN = replace(
    TINY,
    backbone=replace(TINY.backbone, widths=(8, 16), groups=4, attention_heads=2),
    image_size=16,
    batch_size=3,
    loop=LoopSettings(steps=STEPS),
    seed=4,
)
SYNCED = "lgq synced"
WITH_GAN = "with discriminator"


def run_named(name: str) -> TokenizerRun:
    if name == WITH_GAN:
        adversarial = LossWeights(lpips=0.0, gan=1.0, discriminator_start=0)
        return replace(RUN, quantizer="fsq", image_size=24, loss=adversarial)
    if name == SYNCED:
        return replace(RUN, quantizer_options={"diversity_weight": 1.0, "sync_usage": True})
    options = {"diversity_weight": 1.0} if name == "lgq" else {}
    return replace(RUN, quantizer=name, quantizer_options=options)


def train_all(photos: Path, out: Path, batches: int, accumulate: int) -> dict:
    """Gradient of the first step, as one vector, and final state of a training with each quantizer."""
    data, results = FolderDataset(photos), {}
    recorded: list[Tensor] = []

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [
            p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        recorded.append(torch.cat([gradient.flatten() for gradient in gradients]).double())

    for name in (*QUANTIZERS, SYNCED, WITH_GAN):
        run = replace(run_named(name), batch_size=batches * RUN.batch_size, accumulate=accumulate)
        training = TokenizerTrainer(run, data, data, out)
        recorded.clear()
        hook = register_optimizer_step_pre_hook(record)
        for step in range(STEPS):
            training.train_step(step)
        hook.remove()
        state = training.tokenizer.state_dict()
        tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
        # With a discriminator, whose gradients come second, they are its own.
        results[name] = {"gradient": recorded[len(recorded) // STEPS - 1], "state": tensors}
    return results


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    folder = tmp_path_factory.mktemp("equivalence")
    paint_photos(folder / "photos", 20)

    def group(count: int, batches: int, accumulate: int) -> list[dict]:
        results = folder / f"{count} x {batches} x {accumulate}"
        return on_processes(count, results, train_all, folder / "photos", folder / "run", batches, accumulate)

    return {"two": group(2, 1, 1), "one": group(1, 2, 1), "accumulating": group(1, 1, 2)}


def distance(trained: dict[str, list[dict]], group: str, name: str) -> float:
    """Relative distance of the gradient of the first step from that of two processes."""
    two, other = (trained[key][0][name]["gradient"] for key in ("two", group))
    return float((two - other).norm() / other.norm())


ROUNDING = 1e-5


@pytest.mark.parametrize("name", ["vq", "rotvq", "fsq", "simvq", SYNCED])
def test_a_training_step_on_two_processes_is_that_of_one_with_twice_the_batch(trained, name):
    assert distance(trained, "one", name) < ROUNDING


@pytest.mark.parametrize("name", ["lgq", "ibq", "lfq", WITH_GAN])
def test_with_usage_or_normalisation_per_process_it_is_that_of_one_which_accumulates(trained, name):
    assert distance(trained, "accumulating", name) < ROUNDING
    assert distance(trained, "one", name) > 100 * ROUNDING


@pytest.mark.parametrize("name", [*QUANTIZERS, SYNCED, WITH_GAN])
def test_training_ends_with_the_same_bits_on_both_processes(trained, name):
    first, second = (states[name]["state"] for states in trained["two"])
    torch.testing.assert_close(first, second, rtol=0, atol=0)
