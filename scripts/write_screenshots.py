"""Write the pictures of docs/viewer.md: every pane of the page, in Chromium.

    python scripts/write_screenshots.py photo-f8 demo/run --generator demo/generator
    python scripts/write_screenshots.py runs/scales --only scales

Two tokenizers, so that there is something to compare; a generator, such as the demo's. The picture of scales
needs a tokenizer with scales.
"""

import argparse
import io
import shutil
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from lgq.viewer.server import served
from lgq.viewer.studio import open_studio

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--generator")
    parser.add_argument("--only", nargs="*", choices=SHOTS, default=list(SHOTS))
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args()
    studio = open_studio(options.runs, generator=options.generator)
    studio.study()
    with served(studio) as address, sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (pane, act) in SHOTS.items():
            if name not in options.only or (pane == "generate" and options.generator is None):
                continue
            if name == "scales" and not studio.models[0].tokenizer.scales:
                continue
            size = NARROW if name.endswith("phone") else WIDE
            page = browser.new_page(
                viewport=size,  # type: ignore[arg-type]
                color_scheme="dark" if name.endswith("dark") else "light",
                device_scale_factor=2 if size is NARROW else 1,
            )
            page.goto(f"{address}#{pane}")
            page.wait_for_selector("html[data-ready=yes]")
            page.wait_for_timeout(1500)
            act(page)
            page.wait_for_timeout(1500)
            write(page.screenshot(), options.out / f"viewer-{name}.png")
            page.close()
        browser.close()


def write(png: bytes, file: Path) -> None:
    """Write a picture in all its colours, as small as PNG can have it."""
    Image.open(io.BytesIO(png)).convert("RGB").save(file, optimize=True)
    print(f"{file.stat().st_size / 1e3:,.0f} kB: {file}")


def look(page: Page) -> None:
    page.locator("#image canvas").first.hover(position={"x": 180, "y": 260})


def scales(page: Page) -> None:
    """Decode the first four scales, and point at a token of the third."""
    slider = page.get_by_label("Number of scales that are decoded")
    slider.press("Home")
    for _ in range(3):
        slider.press("ArrowRight")
    page.wait_for_timeout(1500)
    grid = page.locator("#image .grids canvas").nth(2)
    grid.click(position={"x": 62, "y": 40})
    grid.hover(position={"x": 62, "y": 40})


def edit(page: Page) -> None:
    """Give a patch of tokens to another code, and copy a region elsewhere."""
    picture = page.locator("#edit canvas").first
    box = picture.bounding_box()
    assert box is not None
    picture.press("r")
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.4 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.55 * box["height"], steps=5)
    page.mouse.up()
    page.get_by_role("button", name="Copy").click()
    page.mouse.move(box["x"] + 0.62 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.up()
    page.get_by_role("button", name="Paste").click()
    page.wait_for_selector("#edit[data-decoded]")


def mark(page: Page) -> None:
    """Mark the codes of a part of the map."""
    box = page.locator("#codebook canvas").nth(1).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"], steps=5)
    page.mouse.up()


def draw(page: Page) -> None:
    page.get_by_role("button", name="Draw", exact=True).click()
    page.wait_for_selector("#generate[data-drawn]")
    box = page.locator("#generate canvas").nth(2).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    for share in (0.4, 0.5, 0.6, 0.7):
        page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + share * box["height"], steps=4)
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + share * box["height"], steps=8)
    page.mouse.up()
    slider = page.locator("#generate input[type=range]")
    for _ in range(4):
        slider.press("ArrowLeft")


SHOTS: dict[str, tuple[str, Callable[[Page], None]]] = {
    "image": ("image", look),
    "edit": ("edit", edit),
    "codebook": ("codebook", mark),
    "compare": ("compare", lambda page: None),
    "generate": ("generate", draw),
    "image-dark": ("image", look),
    "image-phone": ("image", lambda page: None),
    "scales": ("image", scales),
}
"""Pane of each picture, and what is done there before it is taken."""

if __name__ == "__main__":
    main()
