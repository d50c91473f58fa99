"""Check that reconstruction metrics rank images as the eye does: stronger blur and JPEG must score worse.

    python benchmarks/check_metrics.py --data 'val-{000..001}.tar'        # about half an hour on two cores
    python benchmarks/check_metrics.py --data photos --images 100

Prints a table. The exit code is 1 if unchanged images do not score perfectly, if LPIPS or rFID does not rise,
or if PSNR or SSIM does not fall, from each degradation to the next stronger one.
"""

import argparse
import io
import sys
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lgq.data import ImageLoader, LoaderSettings, open_dataset, to_tensor
from lgq.data.images import random_subset
from lgq.distributed import join_processes
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import evaluate_reconstructions

Degrade = Callable[[Tensor], Tensor]
Row = dict[str, float]

RISES = {"psnr": False, "ssim": False, "lpips": True, "rfid": True}
"""Whether a metric rises as images get worse."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder, a shard pattern, or `sample`")
    parser.add_argument("--images", type=int, default=1000, help="number of images, chosen at random")
    parser.add_argument("--image-size", type=int, default=64, help="side in pixels of the centre crop")
    options = parser.parse_args()
    sys.exit(0 if check(options) else 1)


def check(options: argparse.Namespace) -> bool:
    """Return whether every metric ranks every family, and unchanged images are perfect."""
    console, device = Console(width=100, highlight=False), join_processes()
    networks = MetricNetworks.available(device)
    if networks.absent:
        raise SystemExit("\n".join(f"{name}: {why}" for name, why in networks.absent.items()))
    data = random_subset(open_dataset(options.data), options.images)
    loader = ImageLoader(data, LoaderSettings(image_size=options.image_size))
    console.print(f"{data!r}, {options.image_size} x {options.image_size} pixels")
    rows = {}
    for name, degrade in ({"identity": identity} | BLURS | JPEGS).items():
        rows[name] = measure(degrade, loader, networks, device)
        console.print(f"{name}: " + ", ".join(f"{metric} {rows[name][metric]:.4g}" for metric in RISES))
    console.print(table(rows))
    families = {"blur": ["identity", *BLURS], "JPEG": ["identity", *JPEGS]}
    checks = [is_perfect(rows["identity"], console)]
    checks += [is_monotone(family, rows, names, console) for family, names in families.items()]
    return all(checks)


def measure(degrade: Degrade, loader: ImageLoader, networks: MetricNetworks, device: torch.device) -> Row:
    def reconstruct(images: Tensor) -> tuple[Tensor, Tensor]:
        return degrade(images), torch.zeros(len(images), 1, dtype=torch.int64)

    metrics = evaluate_reconstructions(reconstruct, 1, loader, networks, device).metrics
    return {metric: metrics[metric] for metric in RISES}


def identity(images: Tensor) -> Tensor:
    return images


def blur(sigma: float) -> Degrade:
    """Gaussian blur of standard deviation `sigma` pixels; the border is mirrored."""
    radius = max(1, round(3 * sigma))
    places = torch.arange(-radius, radius + 1)
    weights = torch.exp(-places.square() / (2 * sigma**2))
    kernel = (weights / weights.sum()).expand(3, 1, 1, -1)

    def degrade(images: Tensor) -> Tensor:
        padded, across = F.pad(images, [radius] * 4, mode="reflect"), kernel.to(images.device)
        return F.conv2d(F.conv2d(padded, across, groups=3), across.mT, groups=3)

    return degrade


def jpeg(quality: int) -> Degrade:
    def degrade(images: Tensor) -> Tensor:
        return torch.stack([through_file(image, quality) for image in images]).to(images.device)

    return degrade


def through_file(image: Tensor, quality: int) -> Tensor:
    levels = ((image + 1) * 127.5).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG", quality=quality)
    return to_tensor(Image.open(file))


BLURS = {f"blur, sigma {sigma:g}": blur(sigma) for sigma in (0.5, 1, 2, 4)}
JPEGS = {f"JPEG, quality {quality}": jpeg(quality) for quality in (90, 50, 20, 5)}


def is_perfect(row: Row, console: Console) -> bool:
    perfect = row["psnr"] == torch.inf and row["ssim"] > 1 - 1e-6 and row["lpips"] == 0 and row["rfid"] < 1e-3
    console.print(f"identity: {'perfect' if perfect else 'NOT PERFECT'}")
    return perfect


def is_monotone(family: str, rows: dict[str, Row], names: list[str], console: Console) -> bool:
    ranked = []
    for metric, rises in RISES.items():
        steps = pairwise(rows[name][metric] for name in names)
        ranked.append(all(b > a if rises else b < a for a, b in steps))
        direction = "rises" if rises else "falls"
        console.print(f"{family}: {metric} {direction if ranked[-1] else f'DOES NOT {direction[:-1]}'}")
    return all(ranked)


def table(rows: dict[str, Row]) -> Table:
    output = Table(box=box.SIMPLE_HEAD)
    output.add_column("degradation")
    for heading in ("PSNR", "SSIM", "LPIPS", "rFID"):
        output.add_column(heading, justify="right")
    for name, row in rows.items():
        output.add_row(
            name, f"{row['psnr']:.2f}", *(f"{row[m]:.4f}" for m in ("ssim", "lpips")), f"{row['rfid']:.3f}"
        )
    return output


if __name__ == "__main__":
    main()
