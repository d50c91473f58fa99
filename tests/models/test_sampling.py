"""Laws of sampling from a masked generator, on networks that are plain formulas."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from lgq.models.sampling import (
    Sampling,
    confidence,
    draw,
    draw_nucleus,
    guided,
    halton_order,
    highest,
    reveal_counts,
    sample_tokens,
)

CODES, NULL, GRID = 16, 5, (4, 6)
LENGTH = math.prod(GRID)
ORDERS = ("confidence", "halton", "random")
SCHEDULES = {
    "cosine": lambda r: math.cos(math.pi * r / 2),
    "linear": lambda r: 1 - r,
    "square": lambda r: 1 - r * r,
    "root": lambda r: 1 - r**0.5,
    "arccos": lambda r: 2 / math.pi * math.acos(r),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Network:
    """Logits that depend on the class, the position and every token of the image; it records its calls."""

    def __init__(self, codes: int = CODES, length: int = LENGTH, dtype: torch.dtype = torch.float32):
        generator = seeded()
        self.by_class = torch.randn(NULL + 1, length, codes, generator=generator)
        self.by_token = torch.randn(codes + 1, codes, generator=generator)
        self.dtype = dtype
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, tokens: Tensor, classes: Tensor, where: Tensor) -> Tensor:
        self.calls.append((tokens.clone(), classes.clone(), where.clone()))
        context = self.by_token[tokens].mean(1, keepdim=True)
        return (2 * self.by_class[classes] + 3 * context)[where].to(self.dtype)


def run(network, tokens=None, classes=(0, 3, 4), seed=0, grid=GRID, **settings) -> Tensor:
    if tokens is None:
        tokens = torch.full((len(classes), math.prod(grid)), CODES)
    return sample_tokens(
        network,
        tokens,
        torch.tensor(classes, dtype=torch.long),
        Sampling(**settings),
        mask_token=CODES,
        null_class=NULL,
        grid=grid,
        generator=seeded(seed),
    )


def partly_masked() -> Tensor:
    """Images with 24, 7, 1 and no masked tokens."""
    tokens = torch.randint(CODES, (4, LENGTH), generator=seeded(1))
    tokens[0] = CODES
    tokens[1, 3:17:2] = CODES
    tokens[2, 20] = CODES
    return tokens


def check_frequencies(codes: Tensor, probabilities: Tensor) -> None:
    """Pearson's test, which a sound sampler fails once in 10,000 times."""
    possible, seen = probabilities > 0, torch.bincount(codes, minlength=len(probabilities))
    assert not seen[~possible].any()
    expected = probabilities[possible].double()
    expected *= len(codes) / expected.sum()
    assert len(expected) == 1 or chisquare(seen[possible], expected).pvalue > 1e-4


def plain_nucleus(probabilities: list[float], top_p: float) -> set[int]:
    nucleus, mass = set(), 0.0
    for code in sorted(range(len(probabilities)), key=lambda code: -probabilities[code]):
        if mass >= top_p:
            break
        nucleus.add(code)
        mass += probabilities[code]
    return nucleus


# ---- schedules


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 7, 11])
def test_counts_follow_the_schedule(schedule, steps):
    counts = reveal_counts(torch.tensor([1024, 300]), steps, schedule)
    for image, masked in enumerate((1024, 300)):
        left = masked - counts[:, image].cumsum(0)
        wanted = [math.floor(masked * SCHEDULES[schedule]((t + 1) / steps) + 1e-9) for t in range(steps)]
        assert left.tolist() == wanted


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_step_sets_a_token_and_an_image_does_not_depend_on_its_batch(schedule):
    masked = [0, 1, 2, 5, 11, 12, 13, 20, 37]
    together = reveal_counts(torch.tensor(masked), 12, schedule)
    assert together.sum(0).tolist() == masked
    for image, number in enumerate(masked):
        alone = reveal_counts(torch.tensor([number]), 12, schedule).flatten().tolist()
        assert len(alone) == min(12, number)
        assert all(count >= 1 for count in alone)
        assert together[:, image].tolist() == alone + [0] * (12 - len(alone))


def test_rounding_takes_no_token_too_many():
    assert reveal_counts(torch.tensor([20]), 10, "linear").flatten().tolist() == [2] * 10


# ---- orders


def radical_inverse(number: int, base: int) -> Fraction:
    inverse, digit = Fraction(0), Fraction(1, base)
    while number:
        inverse, digit, number = inverse + digit * (number % base), digit / base, number // base
    return inverse


@pytest.mark.parametrize("grid", [(8, 8), (5, 7), (1, 9), (9, 1), (1, 1), (16, 16)])
def test_halton_order_is_the_sequence_on_the_grid(grid):
    rows, columns = grid
    plain: list[int] = []
    point = 1
    while len(plain) < rows * columns:
        row, column = int(rows * radical_inverse(point, 2)), int(columns * radical_inverse(point, 3))
        if row * columns + column not in plain:
            plain.append(row * columns + column)
        point += 1
    assert halton_order(grid).tolist() == plain


def test_stages_of_a_cell_come_together_lower_ones_first():
    expected = [cell * 2 + stage for cell in halton_order((3, 4)).tolist() for stage in (0, 1)]
    assert halton_order((3, 4, 2)).tolist() == expected


def places_in_order(**settings) -> Tensor:
    """Position that each image sets at each step, one per step."""
    network = Network()
    run(network, steps=LENGTH, **settings)
    return torch.stack([where.long().argmax(1) for _, _, where in network.calls], 1)


@pytest.mark.parametrize("grid", [GRID, (3, 4, 2)])
def test_halton_sampling_sets_tokens_in_that_order(grid):
    assert torch.equal(places_in_order(grid=grid, order="halton"), halton_order(grid).expand(3, -1))


def test_random_order_differs_by_image_and_seed():
    first, second = (places_in_order(order="random", seed=seed) for seed in (0, 1))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(1).values, torch.arange(LENGTH).expand(3, -1))


def test_highest_matches_a_plain_sort():
    scores = torch.randint(5, (6, 30), generator=seeded()).float()
    among = torch.rand(6, 30, generator=seeded(1)) < 0.6
    counts = torch.tensor([0, 1, 3, 5, 7, 9])
    chosen = highest(scores, among, counts)
    for row in range(6):
        places = sorted(among[row].nonzero()[:, 0].tolist(), key=lambda place: -scores[row, place])
        assert set(chosen[row].nonzero()[:, 0].tolist()) == set(places[: counts[row]])


# ---- the loop


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("schedule", "guidance"), [*((name, 1.0) for name in SCHEDULES), ("cosine", 3.0)])
def test_every_masked_token_is_set_once_by_the_schedule_and_no_other(order, schedule, guidance):
    network, tokens = Network(), partly_masked()
    settings = {"order": order, "schedule": schedule, "guidance": guidance, "steps": 6}
    final = run(network, tokens, classes=(0, 1, 2, 3), **settings)
    assert torch.equal(tokens, partly_masked())
    calls = [(shown[:4], where[:4]) for shown, _, where in network.calls]
    seen = torch.stack([shown for shown, _ in calls] + [final])
    left = (seen == CODES).sum(2)
    assert torch.equal(left[:-1] - left[1:], reveal_counts(left[0], 6, schedule))
    for before, after in itertools.pairwise(seen):
        assert torch.equal(before[before != CODES], after[before != CODES])
    assert ((final >= 0) & (final < CODES)).all()
    for shown, where in calls:
        assert where.any()
        assert (shown[where] == CODES).all()
        assert order != "confidence" or torch.equal(where, shown == CODES)
    if order != "confidence":  # a fixed order predicts each position once
        assert torch.equal(sum(where.long() for _, where in calls), (tokens == CODES).long())


def test_a_batch_without_masked_tokens_needs_no_forward_pass():
    network, tokens = Network(), torch.zeros(2, LENGTH, dtype=torch.long)
    assert torch.equal(run(network, tokens, classes=(0, 1)), tokens)
    assert run(network, torch.zeros(0, LENGTH, dtype=torch.long), classes=()).shape == (0, LENGTH)
    assert not network.calls


@pytest.mark.parametrize("order", ORDERS)
def test_seeds_reproduce_and_differ_without_the_global_generator(order):
    state = torch.random.get_rng_state()
    first = run(Network(), order=order, seed=3, top_p=0.9)
    assert torch.equal(first, run(Network(), order=order, seed=3, top_p=0.9))
    assert not torch.equal(first, run(Network(), order=order, seed=4, top_p=0.9))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_any_precision_are_computed_in_float32(dtype):
    def as_float32(*shown):
        return Network(dtype=dtype)(*shown).float()

    expected = run(as_float32, guidance=2.0, top_p=0.8)
    assert torch.equal(run(Network(dtype=dtype), guidance=2.0, top_p=0.8), expected)


def test_logits_of_the_network_are_not_overwritten():
    logits = torch.randn(3 * LENGTH, CODES, generator=seeded())
    kept = logits.clone()
    run(lambda *_: logits, steps=1, temperature=0.7, top_k=9, top_p=0.6)
    assert torch.equal(logits, kept)


# ---- guidance


@pytest.mark.parametrize(("guidance", "shown"), [(0.0, (NULL, NULL, NULL)), (1.0, (0, 3, 4))])
def test_guidance_0_never_shows_the_class_and_1_is_the_plain_network(guidance, shown):
    network = Network()
    tokens = run(network, guidance=guidance)
    assert all(classes.tolist() == list(shown) for _, classes, _ in network.calls)
    assert torch.equal(tokens, run(Network(), classes=shown))
    assert torch.equal(run(Network(), guidance=1.0, guidance_ramp=True), run(Network()))


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 1.5, 7.0])
def test_guided_logits_are_the_plain_formula(scale):
    network, tokens, classes = Network(), partly_masked(), torch.tensor([0, 1, 2, NULL])
    where = tokens == CODES
    null, plain = network(tokens, torch.full((4,), NULL), where), network(tokens, classes, where)
    mixed = guided(network, tokens, classes, where, scale, null_class=NULL)
    torch.testing.assert_close(mixed, null + scale * (plain - null), atol=1e-5, rtol=1e-5)


def test_the_ramp_grows_from_1_to_the_guidance():
    def at_step(tokens, classes, where):
        step = len(network.calls)
        null = unconditional(tokens, torch.full_like(classes, NULL), where)
        return null + (1 + 2 * step / 4) * (network(tokens, classes, where) - null)

    network, unconditional = Network(), Network()
    expected = run(at_step, steps=5)
    ramped = Network()
    assert torch.equal(run(ramped, steps=5, guidance=3.0, guidance_ramp=True), expected)
    assert [len(classes) for _, classes, _ in ramped.calls] == [3, 6, 6, 6, 6]
    assert Sampling(guidance=4.0, guidance_ramp=True).guidance_at(0, 1) == 4


# ---- which code


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 1e-9}, {"top_p": 1e-6}]
)
def test_no_freedom_gives_the_likeliest_code(settings):
    logits = torch.randn(500, 40, generator=seeded())
    logits[0] = 0  # of equal logits any may be drawn
    codes = draw(logits, Sampling(**settings), seeded())
    assert torch.equal(codes[1:], logits.argmax(1)[1:])
    assert 0 <= codes[0] < 40


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 6},
        {"top_k": 99},
        *({"top_p": top_p} for top_p in (0.05, 0.3, 0.6, 0.9, 0.99)),
        {"temperature": 1.7, "top_k": 9, "top_p": 0.8},
    ],
)
def test_codes_follow_the_softmax_at_the_temperature_then_top_k_then_top_p(settings):
    logits = 1.5 * torch.randn(CODES, generator=seeded())
    codes = run(
        lambda tokens, classes, where: logits.expand(int(where.sum()), -1),
        classes=(0,) * 40,
        grid=(20, 25),
        steps=1,
        **settings,
    )
    scaled = logits / settings.get("temperature", 1.0)
    least = scaled.topk(min(CODES, settings.get("top_k", CODES))).values[-1]
    probabilities = scaled.masked_fill(scaled < least, -math.inf).softmax(0)
    nucleus = plain_nucleus(probabilities.tolist(), settings.get("top_p", 1.0))
    inside = torch.tensor([code in nucleus for code in range(CODES)])
    check_frequencies(codes.flatten(), probabilities * inside / probabilities[inside].sum())


def test_codes_of_positions_are_independent():
    codes = draw(torch.zeros(20_000, 4), Sampling(), seeded())
    check_frequencies(codes[0::2] * 4 + codes[1::2], torch.full((16,), 1 / 16))


def test_every_row_has_its_own_nucleus():
    probabilities = torch.randn(3_000, 30, generator=seeded()).mul(2).softmax(1)
    codes = draw_nucleus(probabilities, 0.7, seeded()).tolist()
    assert all(
        code in plain_nucleus(row, 0.7) for code, row in zip(codes, probabilities.tolist(), strict=True)
    )


def test_an_impossible_code_is_never_drawn():
    logits = torch.randn(20_000, 8, generator=seeded())
    logits[:, [0, 3, 7]] = -math.inf
    for settings in (Sampling(), Sampling(top_k=6), Sampling(top_p=0.9999)):
        assert set(draw(logits, settings, seeded()).tolist()) == {1, 2, 4, 5, 6}


@pytest.mark.parametrize(("number", "code"), [(0.0, 1), (1 - 2**-24, 2)])
def test_the_ends_of_the_uniform_numbers_give_possible_codes(monkeypatch, number, code):
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, number))
    assert draw_nucleus(torch.tensor([[0, 0.6, 0.4, 0]]), 1.0, seeded()).tolist() == [code]


# ---- confidence


def test_confidence_is_the_log_probability_before_temperature():
    logits = torch.randn(50, CODES, generator=seeded())
    codes = torch.randint(CODES, (50,), generator=seeded())
    expected = logits.log_softmax(1)[torch.arange(50), codes]
    torch.testing.assert_close(confidence(logits, codes, 0.0, seeded()), expected)


def test_noise_on_confidence_is_gumbels():
    size, strength = 100_000, 3.0
    scores = confidence(torch.zeros(size, 1), torch.zeros(size).long(), strength, seeded()) / strength
    assert scores.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert scores.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)
    assert (scores < 0).float().mean().item() == pytest.approx(math.exp(-1), abs=0.01)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 1}])
def test_without_noise_the_most_confident_codes_are_kept(settings):
    network = Network()
    final = run(network, steps=4, choice_temperature=0.0, **settings)
    log_p = Network()(*network.calls[0]).log_softmax(1).view(3, LENGTH, CODES)
    kept = network.calls[1][0] != CODES
    drawn = draw(log_p.flatten(0, 1), Sampling(**settings), seeded()).view(3, LENGTH)
    confidences = log_p.gather(2, drawn[..., None])[..., 0]
    for image in range(3):
        assert confidences[image][kept[image]].min() >= confidences[image][~kept[image]].max()
    assert torch.equal(final[kept], drawn[kept])


def test_the_noise_falls_evenly_and_is_gone_at_the_last_step(monkeypatch):
    strengths = []

    def noted(logits, codes, noise, generator):
        strengths.append(noise)
        return confidence(logits, codes, noise, generator)

    monkeypatch.setattr("lgq.models.sampling.confidence", noted)
    run(Network(), steps=4, choice_temperature=8.0)
    assert strengths == [6, 4, 2, 0]


def test_extreme_settings_still_set_every_token():
    final = run(Network(), choice_temperature=3.4e38, guidance=1e6, temperature=1e6)
    assert (final < CODES).all()


# ---- errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"top_k": 0}, "`top_k` must be at least 1, got 0"),
        ({"top_p": 0.0}, "`top_p` must be above 0 and at most 1, got 0.0: None"),
        ({"top_p": 1.01}, "`top_p` must .* got 1.01"),
        ({"top_p": math.nan}, "`top_p` must .* got nan"),
        ({"temperature": -0.1}, "`temperature` must be finite and at least 0, got -0.1"),
        ({"choice_temperature": -1.0}, "`choice_temperature` must .* got -1.0"),
        ({"guidance": math.nan}, "`guidance` must .* got nan"),
        ({"schedule": "sine"}, "`schedule` must be 'cosine' or .* got 'sine'"),
        ({"order": "raster"}, "`order` must be 'confidence' or .* got 'raster'"),
        ({"steps": 2.5}, "`steps` must be a whole number, got 2.5"),
        ({"top_k": True}, "`top_k` must be a whole number, got True"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_settings_outside_their_range_raise_an_error(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)


@pytest.mark.parametrize(
    ("tokens", "classes", "grid", "message"),
    [
        ([0] * 23 + [-1], (0,), GRID, rf"index -1 is outside 0\.\.{CODES}: "),
        ([0] * 23 + [CODES + 1], (0,), GRID, rf"index {CODES + 1} is outside 0\.\.{CODES}: "),
        ([0] * 24, (-1,), GRID, rf"class -1 is outside 0\.\.{NULL}: use one of the {NULL}"),
        ([0] * 24, (NULL + 1,), GRID, rf"class {NULL + 1} is outside 0\.\.{NULL}: use one of the {NULL}"),
        ([0] * 24, (0, 1), GRID, "got 2 classes for 1 images: give one class per image"),
        *(
            ([0] * 24, (0,), grid, r"a grid of \(.*\) does not hold 24 tokens per image: give")
            for grid in ((4, 5), (24,), (-4, -6), (4, 6, 2))
        ),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_inputs_that_do_not_fit_raise_an_error(tokens, classes, grid, message):
    with pytest.raises(ValueError, match=message):
        run(Network(), torch.tensor([tokens]), classes=classes, grid=grid)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinite_logits_raise_an_error(wrong, temperature):
    def diverged(tokens, classes, where):
        logits = torch.zeros(int(where.sum()), CODES)
        logits[2, 3] = wrong
        return logits

    with pytest.raises(ValueError, match="logits are NaN or infinite"):
        run(diverged, temperature=temperature)
