"""Claims about reconstruction at one codebook size (LGQ paper, abstract, contributions and tab:k16k)."""

from lgq.report.claims.claim import Claim, by_eye, fully_used
from lgq.report.columns import L1, LOSS, LPIPS, PERPLEXITY, PSNR, RFID, SSIM, USED, Column
from lgq.report.contestants import BASELINES, FSQ, IBQ, LFQ, LGQ, ROTVQ, SIMVQ
from lgq.report.curve_rules import leads_throughout
from lgq.report.rules import leads, trails


def _best(column: Column, name: str, where: str, paper: str, also: str = "") -> Claim:
    text = f"LGQ has the best {name} of six quantizers under one backbone and budget.{also}"
    return Claim(f"best-{column.metric}", where, text, paper, leads("comparison", [column], LGQ, BASELINES))


RECONSTRUCTION = (
    _best(RFID, "rFID", "abstract; contribution 2; tab:k16k", "12.32; next SimVQ 16.05, IBQ 16.21"),
    _best(PSNR, "PSNR", "contribution 2; tab:k16k", "21.791; next FSQ 21.475"),
    _best(SSIM, "SSIM", "contribution 2; tab:k16k", "0.6289; next IBQ 0.6145"),
    _best(LPIPS, "LPIPS", "contribution 2; tab:k16k", "0.2438; next IBQ 0.2661"),
    _best(LOSS, "reconstruction loss", "results; tab:k16k", "0.2225; next FSQ 0.2322"),
    _best(
        PERPLEXITY,
        "perplexity",
        "results; tab:k16k, by its bold type",
        "16,011; but the same table has 16,046 for LFQ",
        " The paper's own figures do not say so.",
    ),
    Claim(
        "no-collapse",
        "abstract; contribution 1",
        "LGQ uses its whole codebook without a moving average, resets or a reparameterization.",
        "100% of 16,384",
        fully_used("comparison", LGQ),
    ),
    Claim(
        "others-used",
        "results; tab:k16k",
        "FSQ, LFQ, SimVQ and IBQ use their codebooks fully too.",
        "100.00%, 100.00%, 100.00%, 99.99%",
        fully_used("comparison", FSQ, LFQ, SIMVQ, IBQ),
    ),
    Claim(
        "rotvq-loses-codes",
        "results; tab:k16k",
        "RotVQ, with its hard assignment, uses fewer codes than LGQ.",
        "89.83% against 100%",
        leads("comparison", [USED], LGQ, [ROTVQ]),
    ),
    Claim(
        "rotvq-worst",
        "results; tab:k16k",
        "RotVQ has the worst rFID of the six.",
        "20.15; next LFQ 18.82",
        trails("comparison", RFID, ROTVQ, (LGQ, FSQ, LFQ, SIMVQ, IBQ)),
    ),
    Claim(
        "order-holds-over-training",
        "appendix app:curves",
        "LGQ leads at every validation of the training, so its lead does not depend on where runs stop.",
        "ahead at all 13 epochs of the window, by 1.74 rFID at least",
        leads_throughout("comparison", [RFID, L1], LGQ, (ROTVQ, FSQ, SIMVQ, IBQ)),
    ),
    Claim(
        "finest-texture",
        "results; fig:recon",
        "To the eye, LGQ's reconstructions keep the finest texture and colour, RotVQ's are the most blurred.",
        "figures",
        by_eye("the reconstructions below"),
    ),
)
