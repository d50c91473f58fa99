"""Measure `lgq reconstruct photo-f8` on squares of growing size: time, memory, tiles against the whole.

    python benchmarks/large_images.py [--sides 100 1000 4000]       # minutes on two cores

Each size runs in its own process. Its photograph is an embedded one, enlarged. Memory is the peak of the
process, libraries included. The difference is the largest one between the image that was decoded in tiles and
the one decoded whole, on the scale of 0 to 255; it is left out where the whole would take too much memory.
The exit code is 1 if a process takes 2 GB or more.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
from PIL import Image

from lgq.data import to_tensor
from lgq.data.photographs import photograph_pixels
from lgq.data.transforms import centre_crop, padded_to_multiple
from lgq.inference.reconstruct import reconstruct
from lgq.tokenizer import load_tokenizer

LIMIT = 2_000_000_000
COMPARED = 1_200
"""Largest side of images that are also computed whole."""
SMALL_TILES = 2**22
"""Bytes of a tile for that comparison, so that there are many."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sides", type=int, nargs="+", default=[100, 1_000, 2_000, 4_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one)))
        return
    peaks = []
    print("| pixels a side | seconds | peak memory | largest difference between tiles and whole |")
    print("| ---: | ---: | ---: | ---: |")
    for side in options.sides:
        command = [sys.executable, __file__, "--one", str(side)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        difference = "" if row["difference"] is None else f"{row['difference']:.5f} of 255"
        print(f"| {side:,} | {row['seconds']:.1f} | {row['peak'] / 1e6:,.0f} MB | {difference} |", flush=True)
        peaks.append(row["peak"])
    sys.exit(max(peaks) >= LIMIT)


def measured(side: int) -> dict[str, float | None]:
    """Reconstruct a square photograph with so many pixels a side."""
    tokenizer = load_tokenizer("photo-f8")
    photograph = photograph_pixels("chelsea.png")
    left, top, width, height, *_ = centre_crop(photograph.size)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "photograph.png")
        square = (left, top, left + width, top + height)
        photograph.resize((side, side), Image.Resampling.BICUBIC, box=square).save(file)
        start = time.perf_counter()
        reconstruct(tokenizer, file, Path(folder, "out"))
        seconds = time.perf_counter() - start
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        difference = None
        if side <= COMPARED:
            images = padded_to_multiple(to_tensor(Image.open(file))[None], tokenizer.factor)
            whole = tokenizer.decode(tokenizer.encode(images))
            with patch("lgq.tokenizer._TILE_BYTES", SMALL_TILES):
                tiled = tokenizer.decode(tokenizer.encode(images))
            difference = 127.5 * torch.dist(whole, tiled, torch.inf).item()
    return {"seconds": seconds, "peak": peak, "difference": difference}


if __name__ == "__main__":
    main()
