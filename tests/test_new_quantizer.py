"""A new quantizer is one class and one line: the toy of this file passes the laws, trains, and has rows."""

import importlib.util
import warnings
from inspect import signature
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, Int
from PIL import Image
from quantizer_family import DIM, SIZE
from torch import Tensor, nn

from lgq.cli import main
from lgq.errors import LGQError, LGQWarning
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.runner import experiment
from lgq.ops.gradients import straight_through
from lgq.ops.numerics import mse
from lgq.ops.search import squared_distances
from lgq.quantizers import QUANTIZERS, Quantized, Quantizer, register
from lgq.quantizers.codebook_init import normal_codes
from lgq.quantizers.projection import Projection
from lgq.reporting.page import report
from lgq.tokenizer import load_tokenizer


class Toy(Quantizer):
    """Vector quantization whose codes and latents move towards each other by one loss."""

    label = "Toy"
    scale_defaults = {"smoke": {"weight": 0.5}}  # noqa: RUF012
    dense_matrices = 3

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        weight: float = 1.0,
        seed: int | None = None,
    ):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)
        self.weight = weight
        self.codebook = nn.Parameter(normal_codes(codebook_size, dim, seed=self.seed))

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        return self._quantize(z, self.select(z))

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        return self._quantize(z, squared_distances(z.detach(), self.codebook.detach()).argmin(1))

    def _quantize(self, z: Float[Tensor, "n c"], indices: Int[Tensor, " n"]) -> Quantized:
        codes = self.lookup(indices)
        distance = mse(codes, z)
        return Quantized(
            straight_through(z, codes.to(z.dtype)), indices, self.weight * distance, {"distance": distance}
        )

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        self.seed = seed
        self.codebook.copy_(normal_codes(self.codebook_size, self.dim, seed=seed))


@pytest.fixture(autouse=True)
def _registered():
    register("toy", Toy)
    yield
    del QUANTIZERS["toy"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for i in range(8):
        Image.radial_gradient("L").rotate(9 * i).resize((20, 18)).convert("RGB").save(folder / f"{i}.png")
    return str(folder)


@pytest.fixture
def build():
    return lambda **options: Toy(DIM, SIZE, **{"seed": 0} | options)


build_single = build_class = build_maskable = build

_spec = importlib.util.spec_from_file_location("laws", Path(__file__).parent / "quantizers" / "test_laws.py")
_laws = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_laws)
# Every law that takes a quantizer is a test of this module too, in which the fixture `build` gives the toy.
for _name, _law in vars(_laws).items():
    if (
        _name.startswith("test_")
        and {"build", "build_single", "build_class", "build_maskable"} & signature(_law).parameters.keys()
    ):
        globals()[_name] = _law


def test_it_trains_by_its_name_with_the_options_of_its_scale(photos, tmp_path):
    main(["train", "smoke-toy", "--data", photos, "--out", str(tmp_path / "run"), "--steps", "2"])
    tokenizer = load_tokenizer(tmp_path / "run")
    assert isinstance(tokenizer.quantizer, Toy)
    assert tokenizer.quantizer.weight == 0.5


def test_it_is_a_row_of_tables_a_line_of_the_report_and_measured(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "no-weights"))
    for name, row in (("comparison", "Toy"), ("cost", "toy-k16")):
        outcome = experiment(name, "smoke", photos, tmp_path / "results", only=[row])
        assert (outcome.rows, outcome.new_rows, outcome.failed) == (1, 1, [])
    records = ResultsDirectory(tmp_path / "results").records()
    by_kind = {record["kind"]: record for record in records.values()}
    assert by_kind["tokenizer"]["metrics"]["psnr"] > 0
    cost, dense = by_kind["cost"]["metrics"], by_kind["cost"]["others"]
    assert (cost["codebook_size"], cost["tokens"], cost["floor_ms"] > 0) == (16, 64, True)
    assert cost["share_of_step"] == cost["ms"] / cost["networks_ms"] > 0
    assert [row["implementation"] for row in dense] == ["dense"]
    report(tmp_path / "results", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("Toy") >= 2


class Mapped(Toy):
    """A toy behind a map of its own, which is cast to the dtype of the vectors in one of two ways."""

    def __init__(self, *arguments, cast: bool = False, **options):
        super().__init__(*arguments, **options)
        self.map = nn.Linear(DIM, DIM, bias=False) if cast else Projection(DIM, DIM, seed=self.seed)
        self.seen: set[torch.dtype] = set()

    def quantize_vectors(self, z):
        self.seen.add(z.dtype)
        return self._quantize(self._mapped(z), self.select(z))

    def select(self, z):
        return super().select(self._mapped(z))

    def _mapped(self, z):
        if isinstance(self.map, Projection):
            return self.map(z)
        return nn.functional.linear(z, self.map.weight.to(z.dtype))


@pytest.mark.parametrize("cast", [True, False])
@pytest.mark.parametrize(
    ("weights", "latents", "vectors"),
    [
        (torch.float16, torch.float16, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float32, torch.float64, torch.float64),
    ],
)
def test_vectors_are_float32_or_better_and_maps_follow_them_in_both_ways_of_the_guide(
    cast, weights, latents, vectors
):
    q, z = Mapped(DIM, SIZE, cast=cast, seed=0).to(weights), torch.randn(30, DIM).to(latents)
    out = q(z.requires_grad_())
    (out.quantized.sum() + out.loss).backward()
    assert (q.seen, q.map.weight.dtype, out.quantized.dtype) == ({vectors}, weights, latents)
    assert q.encode(z).dtype == torch.int64


class Sloppy(Toy):
    """A toy that chooses codes by a rule of its own, and whose first result may lack what one must have."""

    def __init__(self, *arguments, broken: str = "", **options):
        super().__init__(*arguments, **options)
        self.broken = broken

    def quantize_vectors(self, z):
        result = self._quantize(z, torch.cdist(z, self.codebook, p=1).argmin(1))
        indices = result.indices[:, None] if self.broken == "indices" else result.indices
        loss = result.loss.expand(3) if self.broken == "loss" else result.loss
        return Quantized(result.quantized, indices, loss, result.terms)


def test_a_rule_of_its_own_that_encode_does_not_know_is_warned_of_once():
    q, z = Sloppy(DIM, 256, seed=0), torch.randn(300, DIM)
    with pytest.warns(
        LGQWarning, match=r"Sloppy chose other codes than its `select` for \d+% of the vectors"
    ):
        q(z)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q(z)
        Toy(DIM, 256, seed=0)(z)


def test_values_that_are_not_those_of_its_codes_are_warned_of():
    class Doubled(Toy):
        def quantize_vectors(self, z):
            result = super().quantize_vectors(z)
            return Quantized(2 * result.quantized, result.indices, result.loss, result.terms)

    with pytest.warns(LGQWarning, match="Doubled returned other values than `lookup` of its indices"):
        Doubled(DIM, SIZE, seed=0)(torch.randn(30, DIM))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("indices", r"must return indices of shape \(300,\) in int64, got \(300, 1\) in torch.int64"),
        ("loss", r"must return a loss of shape \(\), got \(3,\)"),
    ],
)
def test_a_result_that_breaks_the_contract_is_refused_with_the_rule(broken, message):
    with pytest.raises(LGQError, match=message):
        Sloppy(DIM, 256, seed=0, broken=broken)(torch.randn(300, DIM))
