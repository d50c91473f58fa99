"""Time from an edit on the page of `lgq view` to the new picture, and its ratio to one bare decoder forward.

    python benchmarks/edit_latency.py [RUN]      # the shipped tokenizer, on a picture of 256 x 256 pixels

Chromium opens the page over the real server and makes 50 edits, each to another code. The page takes the
time from the edit to the picture drawn on its canvas. Forwards of the decoder alone are timed between the
edits, so that both meet the same machine.
"""

import argparse
import shutil
import statistics
import time
from collections import OrderedDict

import torch
from PIL import ImageOps
from playwright.sync_api import sync_playwright

from lgq.data.photographs import photograph_pixels
from lgq.data.transforms import to_tensor
from lgq.viewer.album import Picture
from lgq.viewer.server import served
from lgq.viewer.studio import SHIPPED, Studio, open_studio

EDITS, WARM_UP, SIDE = 50, 5, 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", nargs="?", default=SHIPPED)
    studio = open_studio([parser.parse_args().run])
    square = ImageOps.fit(photograph_pixels("chelsea.png"), (SIDE, SIDE))
    studio.album.pictures = OrderedDict({0: Picture("chelsea", lambda: square)})
    studio.study()
    with served(studio) as address:
        edits, forwards = measure(studio, address)
    edit, forward = (1000 * statistics.median(times) for times in (edits, forwards))
    slowest = 1000 * sorted(edits)[int(0.9 * len(edits))]
    print(f"{studio.models[0].name}, {SIDE} x {SIDE} pixels, {torch.get_num_threads()} threads")
    print(f"edit to picture:  median {edit:6.1f} ms of {len(edits)} edits, 9 of 10 within {slowest:.1f} ms")
    print(f"decoder forward:  median {forward:6.1f} ms of {len(forwards)}")
    print(f"ratio:            {edit / forward:.2f}")


def measure(studio: Studio, address: str) -> tuple[list[float], list[float]]:
    """Return the seconds of edits and of decoder forwards, in turns."""
    tokenizer = studio.models[0].tokenizer
    original = to_tensor(studio.album[0].read())[None]
    with torch.inference_mode():
        latents = tokenizer.quantizer.decode(tokenizer.encode(original))
        latents = latents.contiguous(memory_format=torch.channels_last)
    edits: list[float] = []
    forwards: list[float] = []
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}#edit")
        page.wait_for_selector("html[data-ready=yes]")
        canvas = page.locator("#edit canvas").first
        canvas.click(position={"x": 200, "y": 200})
        page.wait_for_selector("#token .nearest button")
        for number in range(WARM_UP + EDITS):
            page.locator("#code").fill(str(number % tokenizer.codebook_size))
            page.get_by_role("button", name="Set", exact=True).click()
            page.wait_for_selector(f"#edit[data-decoded='{number + 1}']")
            took = page.locator("#edit").get_attribute("data-milliseconds")
            time.sleep(0.1)  # the page draws the difference meanwhile
            began = time.perf_counter()
            with torch.inference_mode():
                tokenizer.decoder(latents)
            if number >= WARM_UP:
                edits.append(float(took or 0) / 1000)
                forwards.append(time.perf_counter() - began)
        browser.close()
    return edits, forwards


if __name__ == "__main__":
    main()
