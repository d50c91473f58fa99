"""The figures of the LGQ paper (Altun et al. 2026), table by table, as it prints them.

Each table names its label in the paper's source, the experiment of ours that asks the same, and of each
row the settings by which a run of ours is that row. Shares are in per cent, as printed.
"""

from collections.abc import Mapping

from lgq.report.columns import (
    ACTIVE,
    COSTS,
    GEOMETRY,
    GFID,
    INCEPTION,
    LPIPS,
    NORMS,
    PSNR,
    RECONSTRUCTION,
    RFID,
    SSIM,
    STEP_TIME,
    TOKENIZER_RFID,
    USED,
    Column,
)
from lgq.report.printed import PaperRow, PaperTable, Printed

LGQ = {"quantizer": "lgq"}
_QUANTIZERS = {"LGQ": "lgq", "RotVQ": "rotvq", "LFQ": "lfq", "FSQ": "fsq", "IBQ": "ibq", "SimVQ": "simvq"}


def _methods(figures: Mapping[str, tuple[Printed, ...]]) -> tuple[PaperRow, ...]:
    return tuple(PaperRow(name, {"quantizer": _QUANTIZERS[name]}, values) for name, values in figures.items())


def _sizes(figures: Mapping[int, tuple[Printed, ...]], name: str = "LGQ") -> tuple[PaperRow, ...]:
    who = _QUANTIZERS[name]
    return tuple(
        PaperRow(f"{name}, K = {codes:,}", {"quantizer": who, "codebook_size": codes}, values)
        for codes, values in figures.items()
    )


def _weights(peak: float, diversity: float, name: str, *values: Printed) -> PaperRow:
    where = {"quantizer_options.peak_weight": peak, "quantizer_options.diversity_weight": diversity}
    return PaperRow(f"peak {peak:g}, diversity {diversity:g}: {name}", where, values)


def _schedule(start: float, end: float, shape: str, *values: Printed) -> PaperRow:
    options = {"tau_start": start, "tau_shape": shape} | ({} if shape == "constant" else {"tau_end": end})
    where = {f"quantizer_options.{name}": value for name, value in options.items()}
    return PaperRow(f"{start:g} to {end:g}, {shape}", where, values)


COMPARISON = PaperTable(
    label="tab:k16k",
    title="Reconstruction with every quantizer at one codebook size",
    about="The paper: K = 16,384, ImageNet at 256 x 256, one training run a row, rFID on 10,000 images.",
    experiment="comparison",
    columns=RECONSTRUCTION,
    rows=_methods(
        {
            "RotVQ": (20.572, 0.5788, 0.3032, 0.2635, 20.15, 89.83, 1_921),
            "LFQ": (21.124, 0.6013, 0.2858, 0.2450, 18.82, 100.00, 16_046),
            "FSQ": (21.475, 0.6014, 0.2705, 0.2322, 17.38, 100.00, 13_651),
            "IBQ": (21.339, 0.6145, 0.2661, 0.2373, 16.21, 99.99, 15_101),
            "SimVQ": (20.930, 0.5990, 0.2778, 0.2512, 16.05, 100.00, 3_981),
            "LGQ": (21.791, 0.6289, 0.2438, 0.2225, 12.32, 100.00, 16_011),
        }
    ),
)

SWEEP = PaperTable(
    label="tab:lgq_sweep",
    title="LGQ over codebook sizes",
    about="The paper: one setting at every K, each row read once its utilization has saturated.",
    experiment="codebook-size",
    columns=RECONSTRUCTION,
    only=LGQ,
    rows=_sizes(
        {
            4_096: (21.353, 0.6080, 0.2751, 0.2358, 16.91, 100.00, 3_997),
            8_192: (21.494, 0.6167, 0.2610, 0.2312, 14.59, 100.00, 7_893),
            16_384: (21.791, 0.6289, 0.2438, 0.2225, 12.32, 100.00, 16_011),
            32_768: (21.932, 0.6386, 0.2371, 0.2180, 11.90, 100.00, 31_826),
            65_536: (22.183, 0.6491, 0.2307, 0.2123, 10.72, 100.00, 63_077),
        }
    ),
)

SATURATION = PaperTable(
    label="sec:results-sweep",
    title="When all codes are in use",
    about="The first validation at which utilization is 100%: the paper counts epochs, we count steps.",
    experiment="codebook-size",
    columns=(Column("first_full_step", "First at 100%", "lower", 0),),
    only=LGQ,
    rows=_sizes({4_096: (7,), 8_192: (10,), 16_384: (13,), 32_768: (22,), 65_536: (29,)}),
)

STUDY = PaperTable(
    label="tab:geometry",
    title="Geometry of the codebooks",
    about="The paper: 5,000 validation images. The estimate of mutual information saturates near the log of "
    "the number of images, so read it as a ranking.",
    experiment="geometry",
    columns=GEOMETRY,
    rows=_methods(
        {
            "LGQ": (100.0, 0.997, 1.9, 13.1, 8.08),
            "IBQ": (100.0, 0.991, 2.6, 12.9, 8.01),
            "FSQ": (100.0, 0.977, 3.7, 12.2, 7.94),
            "SimVQ": (100.0, 0.854, 28.9, 6.2, 6.34),
            "RotVQ": (79.9, 0.771, 43.4, 4.0, 5.20),
        }
    ),
)

GENERATION = PaperTable(
    label="tab:maskgit_gen",
    title="Class-conditional generation with MaskGIT",
    about="The paper: 50,000 samples in 11 steps; its ± is over four sampling seeds of one trained pair, "
    "ours is over training seeds.",
    experiment="generation",
    columns=(TOKENIZER_RFID, GFID, INCEPTION),
    rows=(
        PaperRow("LGQ", {"quantizer": "lgq"}, (12.32, 57.69, 14.80), {"gfid": 0.26}),
        PaperRow("IBQ", {"quantizer": "ibq"}, (16.21, 59.47, 15.03), {"gfid": 0.09}),
        PaperRow("SimVQ", {"quantizer": "simvq"}, (16.05, 69.38, 13.26)),
        PaperRow("FSQ", {"quantizer": "fsq"}, (17.38, 70.16, 13.60), {"gfid": 0.24}),
        PaperRow("RotVQ", {"quantizer": "rotvq"}, (20.15, 92.99, 10.63)),
    ),
)

_L2, _DOT = {"quantizer_options.score": "l2"}, {"quantizer_options.score": "dot"}
LOGITS = PaperTable(
    label="tab:logit",
    title="What the softmax scores: squared distance or dot product",
    about="LGQ twice, with all else the same. The paper: K = 16,384, rFID as a mean over three epochs.",
    experiment="logits",
    columns=(RFID, USED, ACTIVE),
    only=LGQ,
    rows=(
        PaperRow("-|z - e|² (LGQ)", _L2, (12.26, 100.00, 16_384)),
        PaperRow("<z, e> (IBQ-style)", _DOT, (13.62, 79.86, 13_084)),
    ),
)

NORM_BIAS = PaperTable(
    label="tab:normbias",
    title="Norms of codes that are dead, and of those alive",
    about="The paper follows the dot product over epochs 18, 20 and 22, and gives the squared distance at "
    "epoch 23 in its text. Ours are of the best checkpoint.",
    experiment="logits",
    columns=NORMS,
    only=LGQ,
    rows=(
        PaperRow("<z, e> (IBQ-style), epoch 18", {"epoch": 18}, (3_300, 0.823, 1.022, 5.273, 5.909, 0.996)),
        PaperRow("<z, e> (IBQ-style), epoch 20", {"epoch": 20}, (3_300, 0.648, 0.805, 5.232, 5.859, 0.997)),
        PaperRow("<z, e> (IBQ-style), epoch 22", _DOT, (3_300, 0.511, 0.634, 5.198, 5.848, 0.997)),
        PaperRow("-|z - e|² (LGQ), epoch 23", _L2, (0, None, None, 2.80, 10.01, 0.08)),
    ),
)

REGULARIZERS = PaperTable(
    label="tab:abl_reg",
    title="Weights of the two regularizers",
    about="LGQ. The paper: K = 16,384, a reduced budget of 50,000 images and 10 epochs.",
    experiment="regularizers",
    columns=(PSNR, SSIM, LPIPS, RFID, USED),
    only=LGQ,
    rows=(
        _weights(0.005, 0.005, "default", 20.835, 0.5833, 0.3880, 53.40, 47.66),
        _weights(0, 0.005, "no peakedness", 20.679, 0.5626, 0.3917, 56.47, 38.35),
        _weights(0.005, 0, "no diversity", 17.583, 0.4369, 0.5601, 204.55, 0.12),
        _weights(0, 0, "neither", 17.695, 0.4390, 0.5453, 174.19, 0.07),
        _weights(0.001, 0.001, "weak", 20.796, 0.5762, 0.3718, 50.48, 21.61),
        _weights(0.001, 0.005, "weak peakedness", 20.586, 0.5783, 0.3788, 49.74, 40.30),
        _weights(0.005, 0.001, "weak diversity", 20.304, 0.5442, 0.4224, 75.59, 5.32),
        _weights(0.01, 0.01, "twice the default", 20.947, 0.5772, 0.3636, 51.29, 48.85),
        _weights(0.05, 0.05, "ten times the default", 20.787, 0.5782, 0.3796, 52.08, 68.24),
    ),
)

TEMPERATURE = PaperTable(
    label="tab:abl_tau",
    title="Schedule of the temperature",
    about="LGQ. The paper: K = 16,384, the same reduced budget. The first row is the default.",
    experiment="temperature",
    columns=(PSNR, SSIM, LPIPS, RFID, USED),
    only=LGQ,
    rows=(
        _schedule(1.0, 0.1, "linear", 20.835, 0.5833, 0.3880, 53.40, 47.66),
        _schedule(0.5, 0.1, "linear", 20.446, 0.5548, 0.4011, 62.95, 8.37),
        _schedule(2.0, 0.1, "linear", 20.766, 0.5807, 0.3412, 36.00, 77.18),
        _schedule(1.0, 0.05, "linear", 20.589, 0.5622, 0.3887, 53.67, 47.27),
        _schedule(1.0, 0.3, "linear", 20.558, 0.5804, 0.3860, 52.91, 48.55),
        _schedule(1.0, 0.1, "cosine", 20.680, 0.5850, 0.3863, 54.06, 50.56),
        _schedule(1.0, 1.0, "constant", 20.638, 0.5718, 0.3820, 52.78, 52.86),
        _schedule(0.1, 0.1, "constant", 19.378, 0.4993, 0.4852, 113.80, 4.33),
    ),
)

SCALING = PaperTable(
    label="tab:ibq-kscale",
    title="LGQ against IBQ over codebook sizes, at matched steps",
    about="The paper reads both from their logs, at epoch 24, 45 and 23; ours have the same number of steps, "
    "and each is measured at its best validation. The better of the two at each K competes.",
    experiment="scaling",
    columns=(*RECONSTRUCTION[:6], ACTIVE),
    by_group=True,
    rows=(
        *_sizes({4_096: (21.190, 0.5999, 0.2852, 0.2437, 20.68, 99.95, 4_094)}, "IBQ"),
        *_sizes({4_096: (21.409, 0.6065, 0.2705, 0.2343, 16.14, 100.00, 4_096)}),
        *_sizes({16_384: (21.492, 0.6162, 0.2614, 0.2351, 16.63, 99.56, 16_312)}, "IBQ"),
        *_sizes({16_384: (21.738, 0.6260, 0.2436, 0.2230, 12.89, 100.00, 16_384)}),
        *_sizes({65_536: (21.637, 0.6158, 0.2593, 0.2279, 16.10, 55.07, 36_088)}, "IBQ"),
        *_sizes({65_536: (22.093, 0.6460, 0.2304, 0.2145, 10.82, 96.84, 63_465)}),
    ),
)

FULL_SPLIT = PaperTable(
    label="sec:setup",
    title="The order by rFID on all validation images",
    about="The paper: 50,000 images. Ours are those of the comparison.",
    experiment="comparison",
    columns=(RFID,),
    rows=_methods({"LGQ": (6.05,), "SimVQ": (8.19,), "IBQ": (8.42,), "FSQ": (8.83,), "RotVQ": (12.76,)}),
)

COST = PaperTable(
    label="tab:quantizer_cost",
    title="Cost of a quantizer alone: forward and backward",
    about="The paper: 32 images of 256 tokens of 64 channels on an H100. Ours is timed on this machine, by "
    "its own implementation, which keeps no matrix of all tokens and codes. The last column: the paper's is "
    "a share of its training step, ours is relative to a step of our networks without a quantizer.",
    experiment="cost",
    columns=COSTS,
    by_group=True,
    rows=(
        *_sizes({16_384: (77_093, 0.42, 1.5, "< 1"), 65_536: (71_933, 0.45, 2.3, "< 1")}, "FSQ"),
        *_sizes({16_384: (13_123, 2.44, 856, 2.0), 65_536: (3_720, 8.60, 3_196, 7.2)}, "SimVQ"),
        *_sizes({16_384: (694, 46.09, 4_700, 38.5), 65_536: (176, 182.19, 18_548, 152)}, "IBQ"),
        *_sizes({262_144: ("out of memory",) * 3 + (None,)}, "IBQ"),
        *_sizes({4_096: (8_925, 3.59, 854, 3.0), 16_384: (2_627, 12.18, 3_165, 10.2)}),
        *_sizes({65_536: (679, 47.10, 12_405, 39.4), 262_144: (168, 190.33, 49_369, 159)}),
    ),
)

_EPOCH_TIME = (
    "The paper: GPU-hours an epoch, upper bounds. Ours: seconds a training step, validation included."
)
STEPS = PaperTable(
    label="app:cost",
    title="Cost of training, by quantizer",
    about=_EPOCH_TIME,
    experiment="comparison",
    columns=(STEP_TIME,),
    rows=_methods({"LGQ": (16.4,), "IBQ": (17.3,), "SimVQ": (15.4,), "RotVQ": (15.6,), "LFQ": (16.8,)}),
)
STEPS_BY_SIZE = PaperTable(
    label="app:cost, over K",
    title="Cost of training LGQ, by codebook size",
    about=_EPOCH_TIME,
    experiment="codebook-size",
    columns=(STEP_TIME,),
    only=LGQ,
    rows=_sizes({4_096: (15.9,), 65_536: (17.3,)}),
)

TABLES = (
    COMPARISON,
    FULL_SPLIT,
    SWEEP,
    SATURATION,
    SCALING,
    STUDY,
    GENERATION,
    LOGITS,
    NORM_BIAS,
    REGULARIZERS,
    TEMPERATURE,
    COST,
    STEPS,
    STEPS_BY_SIZE,
)
"""All with numbers: tab:theory is the one other table, and contrasts designs in words."""
