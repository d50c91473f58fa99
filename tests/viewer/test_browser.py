"""The page in a real browser: Chromium over the real server. Skipped where there is no Chromium."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from serving import LOCAL, Served, png, serve, small_tokenizer
from test_drawing import small_generator

from lgq.data import FolderDataset
from lgq.training.run_directory import save_codebook
from lgq.viewer.api import api_of
from lgq.viewer.code_gallery import Model
from lgq.viewer.guard import Limits
from lgq.viewer.server import Opening, listening
from lgq.viewer.standalone import export_page
from lgq.viewer.studio import Studio, quality_of, to_rgba

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
PANES = ("image", "edit", "codebook", "compare", "generate")
SUM_OF_PIXELS = """canvas => {
  const context = canvas.getContext('2d');
  const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
  let sum = 0;
  for (let i = 0; i < data.length; i++) sum = (sum * 31 + data[i]) % 1000000007;
  return sum;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def everything(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two tokenizers, the first of a run with three validations, the second local, and a generator."""
    run, generator = tmp_path_factory.mktemp("run"), small_generator()
    codes = generator.tokenizer.quantizer.codebook.detach()
    for step in (10, 20, 30):
        save_codebook(run, step, [torch.arange(32) % (step // 10 + 1)], [codes * step / 30])
    models = [
        Model("first", generator.tokenizer, run),
        Model("second", small_tokenizer("fsq", seed=4, backbone=LOCAL)),
    ]
    studio = Studio(models, FolderDataset(photos), generator)
    studio.study()
    yield from serve(studio, Limits(requests_per_second=10_000, burst=10_000))


@pytest.fixture(scope="module")
def levelled(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A plain tokenizer, one with three scales of a run with two validations, and one with two stages."""
    run, scales = tmp_path_factory.mktemp("scales"), small_tokenizer(scales=(1, 2, 4), seed=5)
    codes = scales.quantizer.quantizer.codebook.detach()
    for step in (10, 20):
        # Each scale has codes of its own in use: 8, 9 and 10 of them.
        counts = [
            torch.arange(32).sub(10 * scale).ge(0) & torch.arange(32).lt(18 + 11 * scale)
            for scale in range(3)
        ]
        save_codebook(run, step, [used.int() for used in counts], [codes * step / 20])
    models = [
        Model("plain", small_tokenizer()),
        Model("scales", scales, run),
        Model("stages", small_tokenizer(stages=2, seed=6)),
    ]
    studio = Studio(models, FolderDataset(photos))
    studio.study()
    yield from serve(studio, Limits(requests_per_second=10_000, burst=10_000))


def open_page(browser: Browser, address: str, width: int = 1280) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(20_000)
    problems: list[str] = []
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.problems = problems  # type: ignore[attr-defined]
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]")
    return page


@pytest.fixture
def page(browser: Browser, everything: Served) -> Iterator[Page]:
    page = open_page(browser, f"http://127.0.0.1:{everything.port}/")
    yield page
    assert page.problems == []  # type: ignore[attr-defined]
    page.close()


@pytest.fixture
def levels(browser: Browser, levelled: Served) -> Iterator[Page]:
    """The page with the tokenizer that has three scales: 4 x 6, 8 x 12 and 16 x 24 tokens."""
    page = open_page(browser, f"http://127.0.0.1:{levelled.port}/")
    choose_model(page, 1)
    yield page
    assert page.problems == []  # type: ignore[attr-defined]
    page.close()


def choose_model(page: Page, model: int) -> None:
    with page.expect_response(re.compile(f"encoding.model={model}")):
        page.locator("#model").select_option(str(model))
    page.wait_for_timeout(300)


def canvas(page: Page, label: str):
    return page.locator(f"section:not([hidden]) canvas[aria-label^='{label}']")


def pixels(page: Page, label: str) -> int:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return canvas(page, label).evaluate(SUM_OF_PIXELS)


def tokens(everything: Served, picture: int = 0):
    packet = everything.ask(f"/api/encoding?model=0&picture={picture}&size=256")
    return packet.arrays["tokens"].reshape(16, 24)


def to_token(page: Page, label: str, row: int, column: int) -> dict[str, float]:
    """Return the place of a token of a picture of 96 x 64 pixels, f = 4, on its square canvas."""
    side = canvas(page, label).bounding_box()["width"]
    return {"x": (column + 0.5) / 24 * side, "y": (row + 4.5) / 24 * side}


def test_the_page_says_what_it_waits_for(browser: Browser, everything: Served):
    opening = Opening()
    opening.doing = "loading photo-f8"
    with listening(opening) as port:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#opening")).to_have_text("Loading photo-f8 …")
        opening.api = api_of(everything.studio)
        page.wait_for_selector("html[data-ready=yes]")
        expect(page.locator("#opening")).to_be_hidden()
        page.close()


def test_a_token_under_the_pointer_and_under_the_arrow_keys_is_explained(page: Page, everything: Served):
    picture = canvas(page, "Original on")
    picture.hover(position=to_token(page, "Original on", 3, 5))
    code = tokens(everything)[3, 5]
    expect(page.locator("#token h2")).to_have_text(f"Code {code}")
    expect(page.locator("#token .where")).to_contain_text("Row 4, column 6")
    expect(page.locator("#token .nearest button")).to_have_count(12)
    expect(page.locator("#token .patches canvas").first).to_be_visible()
    page.mouse.move(0, 0)
    picture.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#token .where")).to_contain_text("Row 9, column 14")
    expect(page.locator("#status")).to_contain_text(f"code {tokens(everything)[8, 13]}")


def test_the_slider_goes_from_the_original_to_the_reconstruction(page: Page):
    slider = page.get_by_label("Share of the picture that shows the original")
    seen = set()
    for key in ("Home", "End"):
        slider.press(key)
        seen.add(pixels(page, "Original on"))
    assert len(seen) == 2


def test_zoom_stays_in_step_over_all_pictures(page: Page):
    before = [pixels(page, label) for label in ("Original on", "Map of tokens", "Map of errors")]
    canvas(page, "Map of tokens").press("+")
    canvas(page, "Map of tokens").press("+")
    after = [pixels(page, label) for label in ("Original on", "Map of tokens", "Map of errors")]
    assert all(a != b for a, b in zip(before, after, strict=True))
    canvas(page, "Map of tokens").press("0")
    page.locator("#help-button").focus()
    assert [pixels(page, label) for label in ("Original on", "Map of tokens", "Map of errors")] == before


def test_an_edit_is_decoded_undone_and_done_again(page: Page, everything: Served):
    page.locator("#tab-edit").click()
    before = pixels(page, "Picture that the edited")
    canvas(page, "Picture that the edited").click(position=to_token(page, "Picture that", 3, 5))
    code = int(tokens(everything)[3, 5])
    expect(page.locator("#code")).to_have_value(str(code))
    page.locator("#code").fill(str(31 - code))
    page.get_by_role("button", name="Set", exact=True).click()
    page.wait_for_selector("#edit[data-decoded='1']")
    expect(page.locator("#token h2")).to_have_text(f"Code {31 - code}")
    expect(page.locator("#edit figcaption", has_text="What has changed")).not_to_contain_text(" 0.0%")
    page.mouse.move(0, 0)
    edited = pixels(page, "Picture that the edited")
    assert edited != before
    page.keyboard.press("Control+z")
    page.wait_for_selector("#edit[data-decoded='2']")
    expect(page.locator("#token h2")).to_have_text(f"Code {code}")
    page.keyboard.press("Control+y")
    page.wait_for_selector("#edit[data-decoded='3']")
    assert pixels(page, "Picture that the edited") == edited
    page.locator("#code").fill("99")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator("#edit .problem")).to_contain_text("whole numbers from 0 to 31")


def test_edits_add_up_to_the_picture_of_all_tokens(page: Page, everything: Served, tmp_path: Path):
    page.locator("#tab-edit").click()
    with page.expect_response(re.compile("encoding.model=1")):
        page.locator("#model").select_option("1")
    page.wait_for_timeout(300)
    places = [(2, 2), (15, 23), (8, 12)]
    for number, (row, column) in enumerate(places):
        canvas(page, "Picture that the").click(position=to_token(page, "Picture that the", row, column))
        code = int(page.locator("#code").input_value())
        page.locator("#code").fill(str(31 - code))
        page.get_by_role("button", name="Set", exact=True).click()
        page.wait_for_selector(f"#edit[data-decoded='{number + 1}']")
    page.keyboard.press("Control+z")
    page.wait_for_selector("#edit[data-decoded='4']")
    saved = {}
    for name in ("tokens", "picture"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {name}").click()
        saved[name] = tmp_path / name
        download.value.save_as(saved[name])
    edited = torch.tensor(json.loads(saved["tokens"].read_text())["tokens"]).view(1, 16, 24)
    tokenizer = everything.studio.models[1].tokenizer
    before = everything.ask("/api/encoding?model=1&picture=0&size=256").arrays["tokens"].reshape(16, 24)
    assert (edited[0].numpy() != before).sum() == 2
    expected = to_rgba(tokenizer.decode(edited)).astype(int)
    assert abs(np.asarray(Image.open(saved["picture"]).convert("RGBA")) - expected).max() <= 1


def test_brush_pipette_regions_and_nearest_codes_change_tokens(page: Page, everything: Served):
    page.locator("#tab-edit").click()
    picture, own = canvas(page, "Map of the edited"), tokens(everything)
    picture.click(position=to_token(page, "Map of the edited", 2, 2))
    page.locator("#token .nearest button").nth(3).click()
    page.wait_for_selector("#edit[data-decoded='1']")
    picture.press("p")
    picture.click(position=to_token(page, "Map of the edited", 9, 9))
    expect(page.locator("#code")).to_have_value(str(own[9, 9]))
    box = picture.bounding_box()
    start, end = (to_token(page, "Map of the edited", 12, column) for column in (3, 8))
    page.mouse.move(box["x"] + start["x"], box["y"] + start["y"])
    page.mouse.down()
    page.mouse.move(box["x"] + end["x"], box["y"] + end["y"], steps=12)
    page.mouse.up()
    expect(page.get_by_role("button", name="Undo")).to_be_enabled()
    picture.press("r")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+Enter")
    expect(page.locator("#status")).to_have_text("Region of 2 by 1 tokens")
    page.get_by_role("button", name="Copy").click()
    picture.press("ArrowUp")
    page.get_by_role("button", name="Swap").click()
    expect(page.locator("#edit .problem")).to_contain_text("overlap")


def test_tokens_are_copied_into_another_picture(page: Page, everything: Served):
    page.locator("#tab-edit").click()
    canvas(page, "Picture that the").click(position=to_token(page, "Picture that the", 2, 2))
    page.get_by_role("button", name="Copy").click()
    page.locator("#pictures button").nth(1).click()
    expect(page.locator("#pictures button").nth(1)).to_have_attribute("aria-checked", "true")
    page.wait_for_timeout(300)
    other = tokens(everything, 1)
    row, column = next(
        (r, c) for r in range(16) for c in range(24) if other[r, c] != tokens(everything)[2, 2]
    )
    canvas(page, "Picture that the").click(position=to_token(page, "Picture that the", row, column))
    page.get_by_role("button", name="Paste").click()
    page.wait_for_selector("#edit[data-decoded='1']")
    expect(page.locator("#token h2")).to_have_text(f"Code {tokens(everything)[2, 2]}")


def test_pictures_and_tokens_are_saved_and_loaded(page: Page, tmp_path: Path):
    page.locator("#tab-edit").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save tokens").click()
    file = tmp_path / "tokens.json"
    saved.value.save_as(file)
    content = json.loads(file.read_text())
    assert content["shape"] == [16, 24]
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save picture").click()
    assert saved.value.suggested_filename == "0.png"
    content["tokens"][0] = 31 - content["tokens"][0]
    file.write_text(json.dumps(content))
    page.locator("#load-tokens").set_input_files(file)
    page.wait_for_selector("#edit[data-decoded='1']")
    file.write_text("[]")
    page.problems.clear()  # type: ignore[attr-defined]
    page.locator("#load-tokens").set_input_files(file)
    expect(page.locator("#edit .problem")).to_contain_text("tokens.json: this is not a file of tokens")
    page.problems.clear()  # type: ignore[attr-defined]  # Chromium logs the answer 422


def test_loading_tokens_looks_like_saving_them(page: Page):
    page.get_by_role("tab", name="Edit").click()
    form = """element => {
        const { fontSize, color } = getComputedStyle(element);
        return [fontSize, color, element.getBoundingClientRect().height];
    }"""
    save = page.get_by_role("button", name="Save tokens").evaluate(form)
    assert page.locator("label", has_text="Load tokens").evaluate(form) == save


def test_a_picture_is_opened_and_a_hostile_one_costs_words_beside_the_button(page: Page):
    upload = {"name": "mine.png", "mimeType": "image/png", "buffer": png(120, 120)}
    page.locator("#open").set_input_files(upload)
    expect(page.locator("#pictures button[aria-checked=true] img")).to_have_attribute("alt", "mine.png")
    expect(page.locator("#image figcaption .size")).to_contain_text(
        re.compile("120 . 120 pixels, 30 . 30 tokens")
    )
    page.locator("#open").set_input_files(upload | {"name": "evil.png", "buffer": b"/etc/passwd"})
    expect(page.locator("#open-problem")).to_contain_text(re.compile("^evil.png: not a readable image"))
    page.problems.clear()  # type: ignore[attr-defined]  # Chromium logs the answer 422


def test_codes_are_marked_in_grid_map_and_picture(page: Page, everything: Served):
    page.locator("#tab-codebook").click()
    expect(page.locator("#codebook figcaption").first).to_contain_text("of 32 in use")
    before = pixels(page, "Codes in the plane")
    page.get_by_label("Sort by").select_option("number")
    canvas(page, "All codes").click(position={"x": 5, "y": 5})
    expect(page.locator("#token h2")).to_have_text("Code 0")
    assert pixels(page, "Codes in the plane") != before
    box = canvas(page, "Codes in the plane").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2, steps=4)
    page.mouse.up()
    expect(page.locator("#codebook figcaption", has_text="Map")).to_contain_text("32 marked")
    for order in ("brightness", "use", "norm", "similarity"):
        page.get_by_label("Sort by").select_option(order)
    page.get_by_label("Colour by").select_option("age")


def test_the_time_slider_shows_earlier_validations(page: Page):
    page.locator("#tab-codebook").click()
    slider = page.locator("#codebook .time input")
    expect(slider).to_be_enabled()
    expect(page.locator("#codebook .time")).to_contain_text("step 30: 24 codes in use")
    before = pixels(page, "Codes in the plane")
    slider.press("Home")
    expect(page.locator("#codebook .time")).to_contain_text("step 10: 16 codes in use")
    assert pixels(page, "Codes in the plane") != before


def test_two_tokenizers_are_compared(page: Page):
    page.locator("#tab-compare").click()
    expect(page.locator("#compare figcaption", has_text=re.compile("PSNR .* dB"))).to_have_count(2)
    expect(page.locator("#compare .legend", has_text="first")).to_contain_text("second")
    assert pixels(page, "Errors of first") != pixels(page, "Errors of second")


def test_a_picture_is_drawn_step_by_step_and_redrawn_where_it_is_painted(page: Page):
    page.locator("#tab-generate").click()
    page.get_by_label("Steps").fill("5")
    page.get_by_role("button", name="Draw", exact=True).click()
    page.wait_for_selector("#generate[data-drawn='5']")
    last = pixels(page, "Picture that is being drawn")
    page.locator("#generate input[type=range]").press("Home")
    expect(page.locator("#generate figcaption").first).to_contain_text("step 1 of 5")
    assert pixels(page, "Picture that is being drawn") != last
    box = canvas(page, "Picture; drag").bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 30, steps=10)
    page.mouse.up()
    page.get_by_label("Steps").fill("2")
    page.get_by_role("button", name="Redraw the painted part").click()
    page.wait_for_selector("#generate[data-drawn='2']")
    expect(page.locator("#generate .problem")).to_be_hidden()


def test_every_scale_is_a_grid_and_a_code_lights_up_on_all_of_them(levels: Page, levelled: Served):
    expect(levels.locator("#image .grids canvas")).to_have_count(3)
    expect(levels.locator("#level")).to_have_value("2")
    expect(levels.locator("#image figcaption .size")).to_contain_text("16 tokens on scale 3")
    before = pixels(levels, "Tokens of scale 3")
    coarse = canvas(levels, "Tokens of scale 1")
    box = coarse.bounding_box()
    middle = {"x": 2.5 / 6 * box["width"], "y": 1.5 / 4 * box["height"]}
    coarse.hover(position=middle)
    sequence = levelled.ask("/api/encoding?model=1&picture=0&size=256").arrays["tokens"]
    code = sequence[1 * 6 + 2]
    expect(levels.locator("#token h2")).to_have_text(f"Code {code}")
    here = (sequence[:24] == code).sum(), (sequence == code).sum()
    expect(levels.locator("#token .where")).to_have_text(
        f"Row 2, column 3 of scale 1. {here[0]} of 24 tokens of this scale "
        f"{'has' if here[0] == 1 else 'have'} this code, "
        f"{here[1]} of 504 over all scales."
    )
    expect(levels.locator("#token .facts")).to_contain_text("On scale 1")
    expect(levels.locator("#token")).to_contain_text("added to what coarser scales give")
    assert pixels(levels, "Tokens of scale 3") != before
    coarse.click(position=middle)
    expect(levels.locator("#level")).to_have_value("0")
    expect(levels.locator("#image figcaption .size")).to_contain_text("4 tokens on scale 1")
    expect(levels.locator("#token h2")).to_have_text(f"Code {code}")
    choose_model(levels, 0)
    expect(levels.locator("#image .grids")).to_be_hidden()
    expect(levels.locator("#level-choice")).to_be_hidden()
    expect(levels.get_by_label("that are decoded")).to_be_hidden()


def test_a_picture_is_decoded_from_its_first_scales(levels: Page, levelled: Served):
    slider, words = levels.get_by_label("Number of scales that are decoded"), levels.locator("#image output")
    expect(words).to_have_text("Decoded from all 3 scales")
    whole = pixels(levels, "Original on")
    slider.press("Home")
    expect(words).to_have_text("Decoded from scale 1 of 3")
    first = levelled.studio.encode(1, 0, 256, 1)
    expect(levels.locator("#image .numbers")).to_contain_text(f"{quality_of(first):.2f} dB")
    expect(levels.locator("#image .numbers")).to_contain_text(f"{24 * 5 / (96 * 64):.3f}")
    assert pixels(levels, "Original on") != whole
    slider.press("End")
    expect(words).to_have_text("Decoded from all 3 scales")
    expect(levels.locator("#image .numbers")).to_contain_text(f"{504 * 5 / (96 * 64):.3f}")
    assert pixels(levels, "Original on") == whole


def test_tokens_of_a_scale_are_edited(levels: Page, levelled: Served, tmp_path: Path):
    levels.locator("#tab-edit").click()
    expect(levels.locator("#edit .note")).to_contain_text("the whole picture is decoded")
    levels.locator("#level").select_option(index=0)
    expect(levels.locator("#edit figcaption", has_text="Tokens on scale 1")).to_be_visible()
    side = canvas(levels, "Map of the edited").bounding_box()["width"]
    canvas(levels, "Map of the edited").click(position={"x": 0.9 * side, "y": 0.55 * side})
    code = int(levels.locator("#code").input_value())
    levels.locator("#code").fill(str(31 - code))
    levels.get_by_role("button", name="Set", exact=True).click()
    levels.wait_for_selector("#edit[data-decoded='1']")
    levels.get_by_role("button", name="Copy").click()
    levels.locator("#level").select_option(index=1)  # whose codes are the same
    canvas(levels, "Map of the edited").click(position={"x": 0.1 * side, "y": 0.55 * side})
    levels.get_by_role("button", name="Paste").click()
    levels.wait_for_selector("#edit[data-decoded='2']")
    saved = {}
    for name in ("tokens", "picture"):
        with levels.expect_download() as download:
            levels.get_by_role("button", name=f"Save {name}").click()
        saved[name] = tmp_path / name
        download.value.save_as(saved[name])
    edited = torch.tensor(json.loads(saved["tokens"].read_text())["tokens"])[None]
    before = levelled.ask("/api/encoding?model=1&picture=0&size=256").arrays["tokens"]
    changed = (edited[0].numpy() != before).nonzero()[0]
    assert changed.tolist() == [2 * 6 + 5, 24 + 4 * 12 + 1]
    expected = to_rgba(levelled.studio.models[1].tokenizer.decode(edited, (16, 24))).astype(int)
    assert np.array_equal(np.asarray(Image.open(saved["picture"]).convert("RGBA")), expected)


def test_tokens_of_a_stage_are_not_pasted_into_another(levels: Page):
    choose_model(levels, 2)
    levels.locator("#tab-edit").click()
    canvas(levels, "Map of the edited").click(position=to_token(levels, "Map of the edited", 3, 5))
    levels.get_by_role("button", name="Copy").click()
    levels.locator("#level").select_option(index=1)
    canvas(levels, "Map of the edited").click(position=to_token(levels, "Map of the edited", 3, 6))
    levels.get_by_role("button", name="Paste").click()
    expect(levels.locator("#edit .problem")).to_contain_text("another stage, whose codes mean other things")


def test_codes_are_counted_over_all_scales_or_on_one(levels: Page, levelled: Served):
    levels.locator("#tab-codebook").click()
    counts = levelled.studio.models[1].galleries[0].counts
    summary, moment = levels.locator("#codebook figcaption").first, levels.locator("#codebook .time")
    expect(summary).to_contain_text(f"{int((counts.sum(0) > 0).sum())} of 32 in use")
    expect(moment).to_contain_text("step 20: 32 codes in use")
    levels.get_by_label("Count").select_option("the chosen scale")
    levels.locator("#level").select_option(index=0)
    expect(summary).to_contain_text(f"{int((counts[0] > 0).sum())} of 32 in use")
    expect(moment).to_contain_text("step 20: 18 codes in use")
    expect(levels.locator("#codebook figcaption", has_text="on scale 1")).to_be_visible()
    choose_model(levels, 2)
    expect(levels.get_by_label("Count")).to_be_hidden()


def test_tokenizers_of_all_kinds_are_compared(levels: Page):
    levels.locator("#tab-compare").click()
    expect(levels.locator("#compare figcaption", has_text=re.compile("PSNR .* dB"))).to_have_count(3)
    expect(levels.locator("#compare figcaption", has_text="3 scales")).to_have_count(1)
    expect(levels.locator("#compare .legend", has_text="plain")).to_contain_text("stages, stage 1")
    assert pixels(levels, "Errors of scales") != pixels(levels, "Errors of plain")


def test_scales_work_in_a_page_saved_as_a_file(browser: Browser, levelled: Served, tmp_path: Path):
    export_page(levelled.studio, tmp_path / "page.html")
    page = open_page(browser, (tmp_path / "page.html").as_uri())
    page.locator("#model").select_option("1")
    expect(page.locator("#image .grids canvas")).to_have_count(3)
    page.get_by_label("Number of scales that are decoded").press("Home")
    first = quality_of(levelled.studio.encode(1, 0, 256, 1))
    expect(page.locator("#image .numbers")).to_contain_text(f"{first:.2f} dB")
    canvas(page, "Tokens of scale 1").hover()
    expect(page.locator("#token .patches canvas").first).to_be_visible()
    assert page.problems == []  # type: ignore[attr-defined]
    page.close()


def test_a_page_saved_as_a_file_works_without_a_server(browser: Browser, everything: Served, tmp_path: Path):
    export_page(everything.studio, tmp_path / "page.html")
    page = open_page(browser, (tmp_path / "page.html").as_uri())
    canvas(page, "Original on").hover(position=to_token(page, "Original on", 3, 5))
    expect(page.locator("#token h2")).to_have_text(f"Code {tokens(everything)[3, 5]}")
    expect(page.locator("#token .patches canvas").first).to_be_visible()
    page.locator("#tab-codebook").click()
    expect(page.locator("#codebook .time")).to_contain_text("step 30")
    page.locator("#tab-compare").click()
    expect(page.locator("#compare figcaption", has_text=re.compile("PSNR .* dB"))).to_have_count(2)
    page.locator("#tab-edit").click()
    expect(page.locator("#edit")).to_contain_text("run lgq view to edit")
    assert page.locator("#tab-generate").count() == 0
    assert page.problems == []  # type: ignore[attr-defined]
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_pane_is_wider_than_the_screen_and_tabs_follow_the_arrow_keys(browser, everything, width):
    page = open_page(browser, f"http://127.0.0.1:{everything.port}/", width)
    page.locator("#tab-image").focus()
    for name in PANES:
        expect(page.locator(f"#{name}")).to_be_visible()
        expect(page.locator(f"#tab-{name}")).to_have_attribute("aria-selected", "true")
        page.wait_for_timeout(100)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, name
        for tab in page.locator("[role=tab]").all():
            box = tab.bounding_box()
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= width, name
        page.keyboard.press("ArrowRight")
    expect(page.locator("#image")).to_be_visible()
    assert page.problems == []  # type: ignore[attr-defined]
    page.close()


def test_nothing_jumps_while_the_page_loads_and_a_token_is_looked_at(page: Page):
    watch = """() => new Promise(done => {
      let sum = 0;
      const add = list => list.getEntries().forEach(entry => { sum += entry.value; });
      const watcher = new PerformanceObserver(add);
      watcher.observe({ type: 'layout-shift', buffered: true });
      setTimeout(() => done(sum), 300);
    })"""
    canvas(page, "Original on").hover(position=to_token(page, "Original on", 3, 5))
    assert page.evaluate(watch) < 0.02
