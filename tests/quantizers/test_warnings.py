"""A loop of one's own is warned of a forgotten temperature and of latents far from the scale of the codes."""

import copy
import re
import warnings
from collections.abc import Callable

import pytest
import torch
from quantizer_family import DIM, SIZE
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from lgq.errors import LGQWarning
from lgq.quantizers import BSQ, FSQ, IBQ, LFQ, LGQ, VQ, Grouped, MultiScale, Quantizer, Residual, RotVQ, SimVQ
from lgq.quantizers.lgq import _UNANNEALED_FORWARDS


def warned(quantizer: Quantizer, batches: int, scale: float = 1.0) -> list[str]:
    """Return the warnings of some training batches."""
    return warnings_of(quantizer, [scale * torch.randn(64, DIM) for _ in range(batches)])


def warnings_of(quantizer: Callable[[torch.Tensor], object], batches: list[torch.Tensor]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches:
            quantizer(batch)
    assert all(warning.category is LGQWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def test_a_temperature_that_is_never_annealed_is_named_once():
    quantizer = LGQ(DIM, SIZE, seed=0)
    assert warned(quantizer, _UNANNEALED_FORWARDS - 1) == []
    (message,) = warned(quantizer, 1)
    assert re.search(r"1,000 training batches.*tau_start = 1.*then stay soft.*q\.anneal\(step", message)
    assert 'tau_shape="constant"' in message
    assert warned(quantizer, 5) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: LGQ(DIM, SIZE, tau_shape="constant"),
        lambda: LGQ(DIM, SIZE, tau_start=0.1),
        lambda: LGQ(DIM, SIZE).eval(),
        lambda: annealed(LGQ(DIM, SIZE)),
        lambda: annealed(Residual([LGQ(DIM, SIZE), VQ(DIM, SIZE)])),
        lambda: with_own_temperature(LGQ(DIM, SIZE)),
    ],
    ids=["constant", "no fall", "eval mode", "annealed to 0", "annealed stages", "set by hand"],
)
def test_a_temperature_that_is_meant_or_annealed_is_not_named(make, monkeypatch):
    monkeypatch.setattr("lgq.quantizers.lgq._UNANNEALED_FORWARDS", 5)
    assert warned(make(), 8) == []


@pytest.mark.parametrize("evaluate", ["eval mode", "encode"])
@pytest.mark.parametrize("make", [lambda: LGQ(DIM, SIZE), lambda: Residual([VQ(DIM, SIZE), LGQ(DIM, SIZE)])])
def test_the_first_evaluation_names_a_temperature_that_was_never_annealed(make, evaluate, monkeypatch):
    monkeypatch.setattr("lgq.quantizers.lgq._UNANNEALED_FORWARDS", 12)
    monkeypatch.setattr("lgq.quantizers.lgq._UNANNEALED_EVALUATION", 10)
    quantizer, z = make(), torch.randn(20, DIM)

    def evaluation() -> object:
        if evaluate == "encode":
            return quantizer.encode(z)
        result = quantizer.eval()(z)
        quantizer.train()
        return result

    assert warned(quantizer, 9) == []
    evaluation()  # too early to tell
    warned(quantizer, 1)
    with pytest.warns(LGQWarning, match="after 10 training batches, the temperature of LGQ is still"):
        evaluation()
    evaluation()
    assert warned(quantizer, 5) == [], "once"


@pytest.mark.parametrize(
    "make",
    [
        lambda: LGQ(DIM, SIZE, tau_shape="constant"),
        lambda: annealed(LGQ(DIM, SIZE)),
        lambda: annealed(MultiScale(LGQ(DIM, SIZE), (1, 4), axes=1)),
        lambda: with_own_temperature(LGQ(DIM, SIZE)),
        lambda: VQ(DIM, SIZE),
    ],
    ids=["constant", "annealed", "annealed scales", "set by hand", "no temperature"],
)
def test_an_evaluation_is_silent_where_the_temperature_is_meant_or_annealed(make, monkeypatch):
    monkeypatch.setattr("lgq.quantizers.lgq._UNANNEALED_EVALUATION", 5)
    quantizer = make()
    warned(quantizer, 8)
    quantizer.encode(torch.randn(20, DIM))
    quantizer.eval()(torch.randn(20, DIM))


def annealed(quantizer: Quantizer) -> Quantizer:
    quantizer.anneal(0.0)
    return quantizer


def with_own_temperature(quantizer: LGQ) -> LGQ:
    quantizer.tau.fill_(0.5)
    return quantizer


def test_stages_of_a_residual_quantizer_are_watched_too(monkeypatch):
    monkeypatch.setattr("lgq.quantizers.lgq._UNANNEALED_FORWARDS", 5)
    (message,) = warned(Residual([VQ(DIM, SIZE, init="kmeans"), LGQ(DIM, SIZE)]), 8, scale=0.01)
    assert "`anneal` was never called" in message, "residuals are small by design"
    assert any("standard deviation" in text for text in warned(Residual([LGQ(DIM, SIZE)]), 1, scale=0.01))


@pytest.mark.parametrize(
    ("make", "scale"),
    [
        (lambda: LGQ(DIM, SIZE), 0.05),
        (lambda: LGQ(DIM, SIZE), 20.0),
        (lambda: VQ(DIM, SIZE), 0.05),
        (lambda: RotVQ(DIM, SIZE), 20.0),
        (lambda: LGQ(DIM, SIZE, codebook_dim=2), 1000.0),
    ],
)
def test_latents_whose_spread_is_far_from_1_are_named_once_with_it(make, scale):
    quantizer = make()
    (message,) = warned(quantizer, 120, scale)
    spread = float(re.search(r"standard deviation of (\S+) per channel around a mean of", message).group(1))
    if quantizer.codebook_dim:  # what is compared lies behind a projection
        scale *= float(quantizer.project_in.weight.detach().square().sum(1).mean().sqrt())
    assert spread == pytest.approx(scale, rel=0.2)
    assert "its initial codes are made for 0.3 to 3 and a mean of at most 3 times that: few codes" in message


@pytest.mark.parametrize(
    "make",
    [
        lambda: LGQ(DIM, SIZE),
        lambda: LGQ(DIM, SIZE, score="cosine"),
        lambda: LGQ(DIM, SIZE, score="cosine", init="kmeans"),
        lambda: VQ(DIM, SIZE),
        lambda: VQ(DIM, SIZE, score="cosine"),
        lambda: IBQ(DIM, SIZE, score="cosine"),
        lambda: Residual([LGQ(DIM, SIZE), VQ(DIM, SIZE)]),
    ],
)
def test_latents_far_from_the_origin_are_named_though_their_spread_fits(make):
    """So are those of a convolution without a normalisation, or behind GroupNorm(1, channels)."""
    (message,) = warnings_of(
        make(), [2 * torch.randn(DIM).sign() + 0.5 * torch.randn(64, DIM) for _ in range(12)]
    )
    assert re.search(
        r"standard deviation of 0\.[45]\S* per channel around a mean of (2|2\.\d|1\.9), and", message
    )
    assert "a mean of at most 3 times that: few codes may be used" in message


@pytest.mark.parametrize(
    "make",
    [
        lambda: LGQ(DIM, SIZE, init="data"),
        lambda: VQ(DIM, SIZE, init="kmeans"),
        lambda: VQ(DIM, SIZE, init="kmeans", score="cosine"),
        lambda: LGQ(DIM, SIZE, scale="data"),
        lambda: LGQ(DIM, SIZE, scale="data", score="cosine"),
        lambda: IBQ(DIM, SIZE),
    ],
)
def test_latents_far_from_the_origin_are_not_named_where_it_does_not_matter(make):
    assert warnings_of(make(), [2 + 0.5 * torch.randn(64, DIM) for _ in range(12)]) == []


MAPPED = [FSQ, LFQ, BSQ, SimVQ]


@pytest.mark.parametrize("make", MAPPED)
@pytest.mark.parametrize(("mean", "spread"), [(0.0, 0.01), (0.08, 0.01), (8.0, 1.0)])
def test_tiny_or_distant_latents_are_named_before_a_map_that_learns(make, mean, spread):
    quantizer, offset = make(DIM, 64, seed=0), mean * torch.randn(DIM).sign()
    batches = [offset + spread * torch.randn(512, DIM) for _ in range(2)]
    (message,) = warnings_of(quantizer, batches)
    kind = "codes are" if make is SimVQ else "map is"
    rule = f"initial {kind} made for at least 0.05 and a mean of at most 3 times that: few codes"
    assert rule in message
    assert "Put a BatchNorm before the quantizer" in message
    remedy = nn.Sequential(nn.BatchNorm1d(DIM), make(DIM, 64, seed=0))
    assert warnings_of(remedy, batches) == []
    used = [len(model(batches[0]).indices.unique()) for model in (quantizer, remedy)]
    assert used[0] < used[1] / (2 if spread < 1 else 1)


@pytest.mark.parametrize("make", MAPPED)
@pytest.mark.parametrize("scale", [0.06, 50.0])
def test_maps_that_learn_take_latents_of_wide_bounds(make, scale):
    assert warned(make(DIM, 64, seed=0), 12, scale) == []


@pytest.mark.parametrize("make", [lambda: LGQ(DIM, SIZE), lambda: VQ(DIM, SIZE)])
def test_the_advice_of_the_warning_uses_many_codes(make):
    batches = [torch.randn(DIM).sign() + 0.05 * torch.randn(512, DIM)] * 2
    quantizer = make()
    (message,) = warnings_of(quantizer, batches)
    assert len(quantizer.encode(batches[0]).unique()) < SIZE / 4
    remedies = [
        LGQ(DIM, SIZE, scale="data")
        if isinstance(quantizer, LGQ)
        else VQ(DIM, SIZE, init="kmeans", restart_below=1),
        nn.Sequential(nn.BatchNorm1d(DIM), make()),
    ]
    for words, remedy in zip(
        ('scale="data"|init="kmeans", restart_below=1', "BatchNorm"), remedies, strict=True
    ):
        assert re.search(words, message)
        for batch in batches:
            out = remedy(batch)
        assert len(out.indices.unique()) > SIZE / 2


def test_the_norm_of_latents_is_what_matters_to_inner_products():
    (message,) = warned(IBQ(DIM, SIZE), 12, scale=20.0)
    assert re.search(
        r"root mean square of (19|2\d) per channel, and its initial codes .* for 0 to 3:", message
    )
    assert message.endswith("Put a LayerNorm before the quantizer, or lower init_std.")
    assert len(warnings_of(IBQ(DIM, SIZE), [20 + torch.randn(64, DIM)])) == 1


def test_batches_of_few_vectors_are_not_judged():
    assert warnings_of(LGQ(DIM, SIZE), [torch.randn(2, DIM) for _ in range(12)]) == []


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_latents_near_unit_scale_are_not_named(build_class, scale):
    quantizer = build_class()
    quantizer.anneal(0.0)
    assert warned(quantizer, 101, scale) == []


@pytest.mark.parametrize(
    ("make", "scale", "advice"),
    [
        (lambda: LGQ(DIM, SIZE, init="kmeans"), 0.1, 'scale="data"'),
        (lambda: Residual([LGQ(DIM, SIZE, init="data"), VQ(DIM, SIZE)]), 0.1, 'scale="data"'),
        (lambda: Grouped.of(lambda: LGQ(DIM // 2, SIZE, init="data"), 2), 0.1, 'scale="data"'),
        (lambda: with_own_codes(LGQ(DIM, SIZE)), 0.1, 'scale="data"'),
        (lambda: IBQ(DIM, SIZE, init="data"), 20.0, 'score="cosine"'),
    ],
    ids=["kmeans", "stages", "groups", "own codes", "ibq"],
)
def test_the_reason_is_the_temperature_where_the_codes_were_not_drawn(make, scale, advice):
    (message,) = warned(make(), 12, scale)
    assert re.search(r"its temperature is made for 0(.3)? to 3: few codes may be used", message)
    assert advice in message


def test_scales_are_told_by_their_initial_codes_again_after_a_reset():
    quantizer = with_own_codes(VQ(DIM, SIZE))
    assert warned(quantizer, 1, scale=0.05) == [], "its owner has chosen them"
    again = with_own_codes(VQ(DIM, SIZE))
    again.reset_parameters(3)
    (message,) = warned(again, 1, scale=0.05)
    assert "its initial codes are made for" in message


def with_own_codes(quantizer: LGQ | VQ) -> LGQ | VQ:
    quantizer.set_codebook(0.1 * torch.randn(SIZE, DIM))
    return quantizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grouped.of(lambda: LGQ(DIM // 2, SIZE), 2),
        lambda: Grouped.of(lambda: Residual([LGQ(DIM // 2, SIZE), LGQ(DIM // 2, SIZE)]), 2),
        lambda: Grouped.of(lambda: LGQ(DIM // 2, SIZE), 2, shared=True),
    ],
    ids=["groups", "groups of stages", "shared"],
)
def test_one_group_speaks_for_all(make):
    assert len(warned(make(), 120, scale=0.05)) == 1


def test_a_group_whose_scale_is_good_leaves_the_others_watched():
    quantizer = Grouped.of(lambda: LGQ(DIM // 2, SIZE), 2)
    z = torch.randn(64, DIM)
    z[:, DIM // 2 :] *= 1e-3
    with pytest.warns(LGQWarning, match="standard deviation of 0.00"):
        quantizer(z)


def test_a_scale_that_drifts_is_seen_at_the_tenth_and_the_hundredth_batch():
    for before in (9, 99):
        quantizer = LGQ(DIM, SIZE)
        assert warned(quantizer, before) == []
        assert len(warned(quantizer, 1, scale=100.0)) == 1
    quantizer = LGQ(DIM, SIZE)
    warned(quantizer, 1)
    assert warned(quantizer, 8, scale=100.0) == [], "other batches are not measured"


def test_codes_from_data_and_loaded_codes_take_latents_of_any_scale():
    assert warned(VQ(DIM, SIZE, init="kmeans"), 12, scale=50.0) == []
    assert warned(VQ(DIM, SIZE, init="data"), 12, scale=50.0) == []
    assert warned(IBQ(DIM, SIZE), 12, scale=0.02) == [], "its softmax has no trouble with small latents"
    resumed = LGQ(DIM, SIZE)
    resumed.load_state_dict(LGQ(DIM, SIZE).state_dict())
    assert warned(resumed, 12, scale=50.0) == []


def test_the_counter_is_no_part_of_the_state():
    quantizer = LGQ(DIM, SIZE)
    before = set(quantizer.state_dict())
    warned(quantizer, 3)
    assert set(quantizer.state_dict()) == before == {"codebook", "tau", "_extra_state"}
    assert copy.deepcopy(quantizer)._training_forwards == 3


@pytest.mark.usefixtures("without_shape_checks")
def test_watching_makes_no_second_graph():
    torch.compiler.reset()
    quantizer, graphs = LGQ(DIM, SIZE), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(quantizer, fullgraph=True, backend=graphs)
    z = torch.randn(4, DIM)
    for _ in range(12):
        compiled(z)
        quantizer(z)  # counts, as compiled code does not
    assert graphs.frame_count == 1


@pytest.mark.parametrize(
    "make",
    [lambda: LGQ(DIM, SIZE, init="data", scale="data"), lambda: VQ(DIM, SIZE, init="kmeans")],
)
def test_a_first_batch_of_equal_latents_is_named_once(make):
    (text,) = warnings_of(make(), [torch.ones(64, DIM)] * 3)
    assert "holds equal latents only" in text
    assert text.endswith("begin with a larger batch of varied data, or with q.set_codebook(codes).")


@pytest.mark.parametrize("use", ["eval mode", "encode", "frozen"])
@pytest.mark.parametrize(
    "make", [lambda: VQ(DIM, SIZE, init="kmeans"), lambda: Residual([LGQ(DIM, SIZE, init="data")])]
)
def test_codes_that_have_not_started_from_data_are_named_once(make, use):
    quantizer = make().train(use != "eval mode")
    if use == "frozen":
        quantizer.freeze()
    call = quantizer.encode if use == "encode" else quantizer
    (text,) = warnings_of(call, [torch.randn(64, DIM)] * 2)
    assert re.search(r'init="(kmeans|data)"\) are still random numbers.*q.set_codebook', text)


@pytest.mark.parametrize("start", ["batch", "state", "codes"])
def test_codes_that_have_started_from_data_are_not_named(start):
    quantizer, z = VQ(DIM, SIZE, init="kmeans"), torch.randn(64, DIM)
    trained = VQ(DIM, SIZE, init="kmeans")
    trained(z)
    if start == "batch":
        quantizer(z)
    elif start == "state":
        quantizer.load_state_dict(trained.state_dict())
    else:
        quantizer.set_codebook(trained.codebook)
    assert warnings_of(quantizer.eval(), [z]) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: VQ(DIM, SIZE),
        lambda: nn.Sequential(Grouped.of(lambda: LGQ(DIM // 2, SIZE), 2)),
        lambda: VQ(DIM, SIZE, init="kmeans"),
    ],
    ids=["alone", "within torch", "start"],
)
def test_a_warning_names_the_line_of_the_caller(make):
    quantizer, z = make(), torch.zeros(64, DIM)
    with pytest.warns(LGQWarning) as caught:
        quantizer(z)
    assert {warning.filename for warning in caught} == {__file__}
