"""The demo: a tokenizer and a generator on photographs that come along, trained in minutes and shown.

result = run_demo("demo")       # minutes on two CPU cores; after Ctrl-C the same call goes on
for name, value in result.rows():
    print(name, value)
"""

import time
from dataclasses import dataclass
from pathlib import Path

from lgq.data import SampleDataset
from lgq.demo.drawing import DemoPicture
from lgq.demo.generator import demo_generator, show_generator
from lgq.demo.tokenizer import demo_run, show_tokenizer
from lgq.inference.encode import encode
from lgq.tokenizer import load_tokenizer
from lgq.training.generator_trainer import train_generator
from lgq.training.loop import Outcome
from lgq.training.settings import GeneratorRun, TokenizerRun
from lgq.training.tokenizer_trainer import train

RUN, TOKENS, GENERATOR = "run", "tokens", "generator"
"""Directories within the demo's: the tokenizer's run, its tokens of the photographs, the generator's run."""

_ROWS = {
    "psnr": ("PSNR of held-out photographs", "{:.2f} dB"),
    "ssim": ("SSIM of held-out photographs", "{:.3f}"),
    "utilization": ("codes in use, training and held-out", "{:.1%}"),
    "perplexity": ("perplexity of the codes", "{:,.0f}"),
    "codes": ("codes", "{:,.0f}"),
    "tokens": ("tokens an image", "{:,.0f}"),
    "parameters": ("parameters", "{:,.0f}"),
    "nll": ("a hidden training token costs the generator", "{:.2f} nats"),
    "token_entropy": ("and costs who knows its photograph alone", "{:.2f} nats"),
}


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo leaves behind; without values and pictures where it was interrupted."""

    outcome: Outcome
    """How the last training ended: the generator's, or the tokenizer's where that was interrupted."""
    values: dict[str, float]
    """Quality on held-out photographs, use of the codes on these and on the training images, sizes, and
    what tokens cost."""
    pictures: list[DemoPicture]
    seconds: float
    """Time of this call, which is the last part of a demo that was interrupted."""

    def rows(self) -> list[tuple[str, str]]:
        """The values as a table to print: what, and how much."""
        return [(name, form.format(self.values[key])) for key, (name, form) in _ROWS.items() if self.values]


def run_demo(
    out: str | Path = "demo", run: TokenizerRun | None = None, generator: GeneratorRun | None = None
) -> DemoResult:
    """Train, evaluate on held-out photographs, draw; the same call goes on where one was stopped.

    run, generator: settings in the place of `demo_run()` and `demo_generator()`.
    """
    began, out, run = time.monotonic(), Path(out), run or demo_run()
    outcome = _train(out, run, generator or demo_generator())
    if outcome.reason == "interrupted":
        return DemoResult(outcome=outcome, values={}, pictures=[], seconds=time.monotonic() - began)
    values, drawings = show_tokenizer(out / RUN, run.image_size)
    more_values, more_drawings = show_generator(out / GENERATOR, out / TOKENS)
    return DemoResult(
        outcome=outcome,
        values=values | more_values,
        pictures=[drawing.write(out) for drawing in drawings + more_drawings],
        seconds=time.monotonic() - began,
    )


def _train(out: Path, run: TokenizerRun, generator: GeneratorRun) -> Outcome:
    """The tokenizer, then the generator on its tokens; how the last of them ended."""
    photographs = SampleDataset("train")
    outcome = train(run, photographs, out / RUN, val_data=SampleDataset("held-out"))
    if outcome.reason == "interrupted":
        return outcome
    tokenizer = load_tokenizer(out / RUN, "last")
    tokens = encode(tokenizer, photographs, out / TOKENS, image_size=run.image_size, flips=True)
    # Held-out photographs are of other classes: the generator is told of none.
    return train_generator(generator, tokens, out / GENERATOR, val_tokens=tokens, tokenizer=tokenizer)
