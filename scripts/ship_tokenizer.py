"""Turn a training run into the tokenizer that comes with the package: bf16 weights, manifest and model card.

    python scripts/ship_tokenizer.py RUN --data 'photographs/val-000.tar' [--images N]

It measures the weights as trained (float32) and as shipped (bf16) on the held-out photographs, whole and at
their own resolution, writes both into the card, and refuses weights that lose by the rounding.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from lgq.config import to_json
from lgq.data import open_dataset, to_tensor
from lgq.data.images import ImageDataset, StoredImage
from lgq.data.loader import evenly_spread
from lgq.data.transforms import padded_to_multiple
from lgq.files import Manifest, WeightsChoice, replace_directory, replace_file
from lgq.hub import ENVIRONMENT, WEIGHTS, published_weights, run_settings, seal
from lgq.metrics.reconstruction import psnr, ssim
from lgq.model_sources import SHIPPED
from lgq.models.lpips import LPIPS
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer, default_options, load_tokenizer
from lgq.training.history import History, StartFrom

NAME, RUN = "photo-f8", "photo-lgq"
MOST_BYTES = 8_000_000
IMAGE_SIZE = 256
"""Side to which images of a data set are brought for it, unless the user names another."""
TARGETS = {"psnr": 23.0, "lpips": 0.25, "utilization": 0.95}
_ROUNDING = {"psnr": 0.05, "lpips": 0.002}
"""Differences between float32 and bf16 that count as none."""

CARD = """\
---
library_name: lgq
tags:
- image-tokenizer
- vector-quantization
---

# {name}: image tokenizer for photographs, LGQ, f = {factor}, {codes:,} codes

Turns a photograph of any size into one of {codes:,} codes for every {factor} x {factor} pixels, and back. It
comes with the package, so that everything can be tried without training and without a network.{status}

## Use

```python
import lgq

tokenizer = lgq.load_tokenizer("{name}")
tokenizer.decode_image(tokenizer.encode_image("cat.jpg")).save("cat.png")
```

`lgq reconstruct {name} cat.jpg --out pictures` does the same; every command that takes a RUN takes the name.
The networks are local: a pixel depends on tokens up to {reach} away from its own. So large images are
computed in tiles, and their memory stays bounded.

## Training

- Data: 1,350 photographs with a shorter side of 288 pixels, one of each of 1,000 ImageNet classes and those
  of BSDS500 (150 of the 1,500 are held out), in random crops of {crop} x {crop} pixels at their own
  resolution.
- Command, with lgq {version}: `{command}`{extensions}{start}
- {step:,} steps of {batch} crops, {hours:.1f} hours on one CPU core that it shared with other work. l1 and
  LPIPS (VGG16, on {lpips_crops} crops of each step), no GAN. The weights are the moving average at the best
  validation, which was on centre crops of the held-out photographs.
- {parameters:,} parameters, stored in bf16 and computed with in float32.

## Evaluation

Means over {images} held-out photographs, whole and at their own resolution. Codes in use are those that
occur at all in the {tokens:,} tokens of all.

| Weights | PSNR (dB) | SSIM | LPIPS (VGG16) | codes in use |
| --- | ---: | ---: | ---: | ---: |
| float32, as trained | {float32} |
| bf16, as shipped | {bf16} |
| target | >= 23 |  | <= 0.25 | >= 95% |

## Limits

- {bits} bits for 64 pixels are little: fine texture, small faces and text are not kept, and without a GAN
  what is lost becomes blur rather than invented detail.
- It learned from few photographs, mostly of objects, animals and landscapes. Drawings, screenshots, documents
  and medical or satellite images are unlike them.
- It is made for looking at tokenizers and for trials, not as a codec, and no image that it draws is evidence
  of what was in front of a camera.

## License and citation

The weights come under the MIT license of the package, as far as its authors can grant it. The photographs are
from ImageNet and BSDS500, and were given for research use only; none of them is part of the package. The
quantizer is LGQ (Altun et al. 2026).
"""

_FIRST = (
    "These had 4,096 codes, and are from two trainings: `lgq train photo-lgq --data "
    "'photographs/train-{000..001}.tar' --val-data photographs/val-000.tar --out first --steps 20000 "
    "--validate-every 250 --codebook-size 4096 --image-size 64 --loss.lpips-images 3 "
    "--backbone.refinement 0`, with 3,250 steps instead of 20,000 from step 2,184 on, 1.1 hours; and of the "
    "decoder alone `lgq train photo-lgq --data 'photographs/train-{000..001}.tar' --val-data "
    "photographs/val-000.tar --out second --batch-size 4 --validation-images 50 --steps 2600 --log-every 25 "
    "--codebook-size 4096 --frozen-tokens --loss.lpips-images None --start-from first`, 0.9 hours"
)
"""How the `photo-f8` was trained from which the present one grew."""

_PREVIEW = """

**This is a preview.** Its training was short, and it misses its targets ({missed}).
Expect blurred pictures, with traces of a fine grid; weights of a longer run will replace it
under the same name."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="directory of the training run")
    parser.add_argument("--data", required=True, help="held-out photographs")
    parser.add_argument(
        "--images", type=int, help="photographs to reconstruct, evenly spread; all by default"
    )
    parser.add_argument("--weights", choices=["best", "last"], default="best")
    options = parser.parse_args(arguments)
    directory = ship(options.run, open_dataset(options.data), options.weights, options.images)
    print((directory / "README.md").read_text())


def ship(
    run: Path,
    data: ImageDataset,
    weights: WeightsChoice = "best",
    images: int | None = None,
    *,
    perceptual: LPIPS | None = None,
    out: Path = SHIPPED / NAME,
) -> Path:
    """Write the shipped directory of a run, and return it."""
    trained = load_tokenizer(run, weights)
    rounded = load_tokenizer(run, weights).bfloat16().float()
    networks = perceptual or LPIPS.pretrained()
    measured = {
        name: measure(tokenizer, data, networks, images)
        for name, tokenizer in {"float32": trained, "bf16": rounded}.items()
    }
    require_no_loss(measured)
    with replace_directory(out) as directory:
        tokenizer = load_tokenizer(run, weights).bfloat16()
        tokenizer.image_size = IMAGE_SIZE
        tokenizer.save_pretrained(directory)
        replace_file(directory / "README.md", card(run, weights, trained, data, measured).encode())
        size = (directory / WEIGHTS).stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(
                f"{WEIGHTS} would take {size:,} bytes, and may take {MOST_BYTES:,}: train a smaller one."
            )
        seal(directory, _step(run, weights))
    return out


@torch.no_grad()
def measure(
    tokenizer: Tokenizer, data: ImageDataset, perceptual: LPIPS, images: int | None = None
) -> dict[str, float]:
    """Return mean PSNR, SSIM and LPIPS of `images` whole photographs, and the share of codes that all use."""
    used, tokens = torch.zeros(tokenizer.codebook_size, dtype=torch.bool), 0
    compared = set(evenly_spread(len(data), min(images or len(data), len(data))))
    sums = {"psnr": 0.0, "ssim": 0.0, "lpips": 0.0}
    for number in range(len(data)):
        encoded = data[number]
        image = to_tensor(StoredImage(encoded.data, encoded.name).rgb())[None]
        codes = tokenizer.encode(padded_to_multiple(image, tokenizer.factor))
        used[codes.flatten()] = True
        tokens += codes.numel()
        if number in compared:
            result = tokenizer.decode(codes)[..., : image.shape[2], : image.shape[3]]
            for name, metric in {"psnr": psnr, "ssim": ssim, "lpips": perceptual}.items():
                sums[name] += metric(image, result).item()
        print(f"\r{number + 1}/{len(data)}", end="", file=sys.stderr)
    means = {name: total / len(compared) for name, total in sums.items()}
    return means | {"utilization": used.float().mean().item(), "tokens": tokens, "images": len(compared)}


def require_no_loss(measured: dict[str, dict[str, float]]) -> None:
    """Refuse bf16 weights that measure otherwise than those in float32."""
    for metric, tolerance in _ROUNDING.items():
        exact, rounded = (measured[name][metric] for name in ("float32", "bf16"))
        if not abs(exact - rounded) <= tolerance:
            raise SystemExit(
                f"bf16 changes {metric} from {exact:.4f} to {rounded:.4f}: ship float32 weights."
            )


def missed_targets(metrics: dict[str, float]) -> list[str]:
    """Return in words the targets that a tokenizer misses."""
    reached = {
        "23 dB": metrics["psnr"] >= TARGETS["psnr"],
        "an LPIPS of 0.25": metrics["lpips"] <= TARGETS["lpips"],
        "95% of codes in use": metrics["utilization"] >= TARGETS["utilization"],
    }
    return [target for target, met in reached.items() if not met]


def card(
    run: Path,
    weights: WeightsChoice,
    tokenizer: Tokenizer,
    data: ImageDataset,
    measured: dict[str, dict[str, float]],
) -> str:
    """Return the model card."""
    settings, shipped = run_settings(run) or {}, measured["bf16"]
    missed = missed_targets(shipped)
    status = _PREVIEW.format(missed=", ".join(missed)) if missed else ""
    step = _step(run, weights)
    return CARD.format(
        name=NAME,
        factor=tokenizer.factor,
        codes=tokenizer.codebook_size,
        bits=f"{math.log2(tokenizer.codebook_size):.3g}",
        status=status,
        reach=tokenizer.backbone.reach,
        crop=settings["image_size"],
        batch=settings["batch_size"],
        lpips_crops=settings["loss"]["lpips_images"] or "all",
        version=json.loads((run / ENVIRONMENT).read_text())["lgq"],
        command=command(settings),
        extensions="".join(f". Then {change}" for change in History.of(settings).extensions),
        start=_start(History.of(settings).start_from),
        step=step,
        hours=_seconds(run, step) / 3600,
        parameters=sum(tokenizer.parameter_counts().values()),
        images=f"{shipped['images']:.0f} of the {len(data)}",
        tokens=int(shipped["tokens"]),
        **{name: _row(metrics) for name, metrics in measured.items()},
    )


def command(settings: dict[str, Any]) -> str:
    """Return the command that began a run, with its options in the order of the settings."""
    base, options = to_json(named_run(RUN)), []
    loop = settings["loop"]
    if changes := History.of(settings).extensions:
        loop = loop | {"steps": changes[0].planned}
    for name, value in (settings | {"loop": loop}).items():
        default = base.get(name)
        if isinstance(default, dict) and name in ("loop", "loss", "schedule", "backbone", "crop"):
            prefix = "" if name == "loop" else f"{name}."
            options += [(prefix + key, given) for key, given in value.items() if given != default[key]]
        elif name == "quantizer_options":
            usual = default_options(settings["quantizer"]) | {"seed": settings["seed"]}
            given = {key: chosen for key, chosen in value.items() if chosen != usual.get(key)}
            if given != default:
                options.append((name, " ".join(f"{key}={_word(given[key])}" for key in given)))
        elif name in base and value != default:
            options.append((name, value))
    if start := History.of(settings).start_from:
        options.append(("start_from", start.source))
    words = [_words(name.replace("_", "-"), value) for name, value in options]
    data = ["--data 'photographs/train-{000..001}.tar'", "--val-data photographs/val-000.tar"]
    return " ".join([f"lgq train {RUN}", *data, f"--out {NAME}", *words])


def _words(option: str, value: Any) -> str:
    """Return an option and its value as the command line takes them."""
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def _word(value: Any) -> str:
    """Return an option's value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _start(start: StartFrom | None) -> str:
    """Say where the weights come from that a run began with."""
    if start is None:
        return ""
    first = f". {_FIRST}" if start.source == NAME else ""
    return f". It began with weights of {start.source} with the sha256 {start.fingerprint[:12]}{first}"


def _row(metrics: dict[str, float]) -> str:
    use = f"{metrics['utilization']:.1%}"
    return f"{metrics['psnr']:.2f} | {metrics['ssim']:.3f} | {metrics['lpips']:.3f} | {use}"


def _step(run: Path, weights: WeightsChoice) -> int:
    """Return the step of published weights."""
    return Manifest.read(Path(published_weights(run, weights))).step


def _seconds(run: Path, step: int) -> float:
    """Return the seconds of training up to a step."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return max((record["seconds"] for record in records if record["step"] <= step), default=0.0)


if __name__ == "__main__":
    main()
