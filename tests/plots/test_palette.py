"""Every quantizer has its own look, the same everywhere, and colour-blind readers can tell looks apart."""

from itertools import combinations, product

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lgq.plots.palette import DARK, WHITE, colour_of, line_styles, styles_of
from lgq.quantizers import QUANTIZERS
from lgq.reporting.charts import MARKERS

# Machado, Oliveira and Fernandes (2009), full severity, in linear RGB.
VISIONS = {
    "trichromacy": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
TO_XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
USERS = ["slowvq", "mine", "hyperbolic-vq", "turbo"]


def linear(colour: str) -> np.ndarray:
    values = np.array(to_rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour: str, vision: str) -> np.ndarray:
    """The colour as seen, in CIELAB, where distances below 10 are hard to see on thin lines."""
    seen = np.clip(np.array(VISIONS[vision]) @ linear(colour), 0, 1)
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ seen / TO_XYZ.sum(1), 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(colour: str, background: str) -> float:
    light, dark = sorted((TO_XYZ[1] @ linear(name) for name in (colour, background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("background", "scheme"), [(WHITE, "light"), (DARK, "dark")])
def test_colours_of_quantizers_stand_out_and_differ_for_every_reader(background, scheme):
    colours = [getattr(style, scheme) for style in styles_of(QUANTIZERS).values()]
    assert all(contrast(colour, background) >= 3 for colour in colours)
    for vision, (one, two) in product(VISIONS, combinations(colours, 2)):
        assert np.linalg.norm(lab(one, vision) - lab(two, vision)) > 18, (vision, one, two)


def test_every_quantizer_has_a_marker_of_its_own_that_the_page_can_draw():
    markers = [style.marker for style in styles_of(QUANTIZERS).values()]
    assert len(set(markers)) == len(markers)
    assert set(markers) <= set(MARKERS)
    assert all(style.marker in MARKERS for style in styles_of(USERS).values())


def test_a_registered_quantizer_keeps_its_look_beside_the_built_in_ones():
    built_in = styles_of(QUANTIZERS)
    taken = {colour for style in built_in.values() for colour in (style.light, style.dark)}
    for name in USERS:
        beside = styles_of([*QUANTIZERS, name])
        assert beside[name] == styles_of([name])[name]
        assert {other: beside[other] for other in QUANTIZERS} == built_in
        assert not {beside[name].light, beside[name].dark} & taken
        assert contrast(beside[name].light, WHITE) >= 3
        assert contrast(beside[name].dark, DARK) >= 3
        assert colour_of(name) == beside[name].light


def test_looks_of_registered_quantizers_differ_and_do_not_depend_on_their_order():
    many = [f"mine-{i}" for i in range(18)]
    styles = styles_of(many)
    assert len(set(styles.values())) == len(many)
    assert styles_of(many[::-1]) == styles


def test_variants_of_a_quantizer_differ_and_the_first_has_its_colour():
    lines = line_styles(["lgq"] * 9 + ["fsq"])
    assert lines[0].light == colour_of("lgq")
    assert lines[-1] == styles_of(["fsq"])["fsq"]
    assert len(set(lines)) == len(lines)
    assert all(contrast(line.light, WHITE) > 2.5 for line in lines)
