"""`lgq sample` and `lgq inpaint` as a user types them, on a generator of a blink."""

import numpy as np
import pytest
import torch
from command_line import lgq, mistake
from PIL import Image

from lgq import MaskGIT, Tokenizer
from lgq.data import to_png
from lgq.inference.inpaint import inpaint
from lgq.inference.sample import NOTE
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.random import batch_seed

BACKBONE = Backbone(
    widths=(8, 8, 8), blocks=1, attention_heads=0, groups=4, latent_channels=8, latent_groups=2
)
SIDE = 16


def build(classes: int, seed: int = 0) -> MaskGIT:
    torch.manual_seed(seed)
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32)
    names = [f"kind {i}" for i in range(classes)]
    return MaskGIT(Tokenizer(BACKBONE, "lgq", 20), image_size=SIDE, classes=names, transformer=small)


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """A generator of 20 classes as `save_pretrained` writes it."""
    folder = tmp_path_factory.mktemp("pretrained") / "mine"
    build(20).save_pretrained(folder)
    return folder


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_a_picture_of_classes_is_drawn_again_by_the_same_command(generator, tmp_path, capsys):
    command = ["sample", generator, "--classes", 1, 2, "--count", 3, "--steps", 2, "--batch-size", 4]
    lgq(*command, "--out", tmp_path / "new" / "grid.png")
    assert "6 images of 2 classes" in capsys.readouterr().err
    first = (tmp_path / "new" / "grid.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    lgq(*command, "--out", tmp_path / "again.PNG")
    assert (tmp_path / "again.PNG").read_bytes() == first
    lgq(*command, "--seed", 1, "--out", tmp_path / "other.png")
    assert (tmp_path / "other.png").read_bytes() != first


def test_files_hold_what_the_generator_draws_in_batches(generator, tmp_path):
    out = tmp_path / "files"
    out.mkdir()
    (out / "class-0017-00000.png").write_bytes(b"in the way")
    (out / "mine.txt").write_text("stays")
    lgq("sample", generator, "--out", out, "--classes", 17, 3, "--count", 2, "--steps", 2, "--guidance", 2,
        "--seed", 5, "--batch-size", 3)  # fmt: skip
    names = ["class-0017-00000.png", "class-0017-00001.png", "class-0003-00000.png", "class-0003-00001.png"]
    assert {path.name for path in out.iterdir()} == {*names, "mine.txt", NOTE}
    maskgit, sampling = MaskGIT.from_pretrained(generator), Sampling(steps=2, guidance=2.0)
    batches = [
        maskgit.generate(torch.tensor(classes), sampling, seed=batch_seed(5, first))
        for classes, first in (([17, 17, 3], 0), ([3], 3))
    ]
    for name, image in zip(names, torch.cat(batches), strict=True):
        assert (out / name).read_bytes() == to_png(image)


def test_a_command_that_was_stopped_continues_with_the_batches_that_miss_a_file(generator, tmp_path, capsys):
    command = ["sample", generator, "--samples", 10, "--steps", 2, "--batch-size", 4]
    lgq(*command, "--out", tmp_path / "whole")
    lgq(*command, "--out", tmp_path / "broken")
    for name in ("class-0005-00000.png", "class-0009-00000.png"):  # of the second and the third batch
        (tmp_path / "broken" / name).unlink()
    before = {path.name: path.stat().st_ino for path in (tmp_path / "broken").iterdir()}
    lgq(*command, "--out", tmp_path / "broken")
    after = {path.name: path.stat().st_ino for path in (tmp_path / "broken").iterdir()}
    assert after.items() >= before.items(), "files that were there were drawn again"
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "broken" / path.name).read_bytes() == path.read_bytes()


def test_images_of_another_drawing_are_left_alone(generator, tmp_path, capsys):
    out, reseeded = tmp_path / "files", tmp_path / "reseeded"
    command = ["sample", generator, "--out", out, "--classes", 1, "--count", 2, "--steps", 1]
    lgq(*command)
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    build(20, seed=1).save_pretrained(reseeded)
    for name, *change in (
        ("seed", *command, "--seed", 1),
        ("batch_size", *command, "--batch-size", 1),
        ("sampling", *command, "--guidance", 2),
        ("images", *command[:-3], 3, "--steps", 1),
        ("classes", *command[:5], 2, *command[6:]),
        ("generator", "sample", reseeded, *command[2:]),
    ):
        assert f"another drawing ({name} not the same)" in mistake(capsys, *change)
    (out / NOTE).write_text("{}")
    assert "has other bytes than were written" in mistake(capsys, *command)
    (out / NOTE).write_bytes(before[NOTE])
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(("known", "shown"), [(1, [0]), (3, [0, 1, 2]), (20, [0, 2, 5, 7, 10, 12, 15, 17])])
def test_without_classes_some_that_spread_over_all_are_drawn(known, shown, tmp_path):
    build(known).save_pretrained(tmp_path / "generator")
    lgq("sample", tmp_path / "generator", "--out", tmp_path / "files", "--count", 1, "--steps", 1)
    drawn = sorted(path.name for path in (tmp_path / "files").glob("*.png"))
    assert drawn == [f"class-{number:04d}-00000.png" for number in shown]


def test_inpainting_shows_the_image_its_hidden_part_and_results(generator, photo, tmp_path, capsys):
    drawing = ["--label", "kind 4", "--count", 3, "--steps", 2, "--seed", 9]
    whole = [*drawing, "--keep-decoded"]
    lgq("inpaint", generator, photo, "--box", 8, 0, 15, 16, "--out", tmp_path / "strip.png", *whole)
    assert "50% of the image redrawn, 3 times" in capsys.readouterr().err
    options = {"box": (8, 0, 15, 16), "label": 4, "count": 3, "sampling": Sampling(steps=2), "seed": 9}
    inpaint(generator, photo, tmp_path / "expected.png", **options, keep_decoded=True)
    expected = (tmp_path / "expected.png").read_bytes()
    assert (tmp_path / "strip.png").read_bytes() == expected
    # In the middle 20 x 20 pixels of the photograph, the right half is the columns from 15 on.
    mask = Image.new("L", (30, 20))
    mask.paste(255, (15, 0, 25, 20))
    mask.save(tmp_path / "mask.png")
    by_mask = ["inpaint", generator, photo, "--mask", tmp_path / "mask.png"]
    lgq(*by_mask, "--out", tmp_path / "same.png", *whole)
    assert (tmp_path / "same.png").read_bytes() == expected
    lgq(*by_mask, "--out", tmp_path / "pasted.png", *drawing)
    assert (tmp_path / "pasted.png").read_bytes() != expected


def test_inpainting_into_a_directory_writes_one_file_per_result(generator, photo, tmp_path):
    command = ["inpaint", generator, photo, "--box", 8, 0, 15, 16, "--label", 4, "--count", 3, "--steps", 2]
    (tmp_path / "made.before").mkdir()
    for name in ("results", "made.before"):
        lgq(*command, "--out", tmp_path / name)
    expected = inpaint(generator, photo, box=(8, 0, 15, 16), label=4, count=3, sampling=Sampling(steps=2))
    for name in ("results", "made.before"):
        files = sorted((tmp_path / name).iterdir())
        assert [file.name for file in files] == [f"result-0000{i}.png" for i in range(3)]
        assert [file.read_bytes() for file in files] == [to_png(image) for image in expected.images]


def test_classes_are_drawn_by_name_or_number(generator, tmp_path, capsys):
    command = ["sample", generator, "--count", 1, "--steps", 1, "--out"]
    lgq(*command, tmp_path / "names", "--classes", "kind 3", "kind 12", 7)
    names = sorted(path.name for path in (tmp_path / "names").glob("*.png"))
    assert names == [f"class-00{number}-00000.png" for number in ("03", "07", "12")]
    lgq(*command, tmp_path / "numbers", "--classes", 3, 12, 7)
    for name in names:
        assert (tmp_path / "numbers" / name).read_bytes() == (tmp_path / "names" / name).read_bytes()
    line = mistake(capsys, *command, tmp_path / "other", "--classes", "kind3")
    assert "knows no class 'kind3': did you mean 'kind 3'" in line
    assert "--classes names each class once" in mistake(
        capsys, *command, tmp_path / "x", "--classes", "kind 3", 3
    )


def test_a_generator_of_one_class_needs_no_label(photo, tmp_path):
    build(1).save_pretrained(tmp_path / "generator")
    out = tmp_path / "strip.png"
    lgq("inpaint", tmp_path / "generator", photo, "--box", 0, 0, 4, 4, "--out", out, "--steps", 1)
    assert out.exists()
