"""Images to tokens on disk and back, with tokenizers small enough to run in a blink."""

import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from process_groups import on_processes
from token_sets import write_tokens
from torch import Tensor

from lgq.data import BrokenImage, DataError, to_tensor
from lgq.data.images import StoredImage
from lgq.data.loader import warn_of_enlarged
from lgq.data.token_format import TokenError, TokenWriter
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError, LGQWarning
from lgq.hub import PretrainedError
from lgq.inference import encode as encoding
from lgq.inference.decode import decode
from lgq.inference.encode import tokenizer_of
from lgq.inference.reconstruct import reconstruct
from lgq.inference.sample import sample
from lgq.models.autoencoder import Backbone
from lgq.progress import Progress, unwatched
from lgq.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:2 of 7 images lie beside the folders")


@pytest.fixture(autouse=True)
def one_sync_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the faults below, which count them, meet the file's own and not its directory's."""
    monkeypatch.setattr("lgq.files.sync_directory", lambda path: None)


TINY = Backbone(widths=(8, 16, 16), blocks=1, attention_heads=2, groups=4, latent_channels=8, latent_groups=2)
SIDE = 16
NAMES = ["Katze/a.png", "Katze/b.png", "stray.png", "é.png", "犬/柴 1.png", "犬/柴 2.png", "犬/柴 3.png"]


def build(seed: int = 0, **settings: Any) -> Tokenizer:
    torch.manual_seed(seed)
    return Tokenizer(TINY, **({"quantizer": "lgq", "codebook_size": 300} | settings)).eval()


def picture(seed: int, width: int = SIDE, height: int = SIDE) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def put_pictures(root: Path, names: list[str] = NAMES) -> Path:
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed).save(root / name)
    return root


def as_stored(image: Tensor) -> Tensor:
    """Rounded to 8 bits, as a PNG rounds."""
    return ((image + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1


def encode(tokenizer: Tokenizer, data: Path, out: Path, **options: Any) -> TokenDataset:
    settings = {"image_size": SIDE, "batch_size": 2, "shard_size": 3} | options
    return encoding.encode(tokenizer, data, out, **settings)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_pictures(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build()


@pytest.fixture(scope="module")
def encoded(photos: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Must not be written to."""
    folder = tmp_path_factory.mktemp("encoded")
    encode(tokenizer, photos, folder)
    return folder


@pytest.mark.parametrize(
    "settings",
    [{}, {"stages": 2}, {"quantizer": "fsq", "codebook_size": 64}, {"codebook_size": 70_000}],
    ids=str,
)
def test_encoded_and_decoded_images_are_the_tokenizers_own(tmp_path, photos, settings):
    tokenizer = build(**settings)
    dataset = encode(tokenizer, photos, tmp_path / "tokens", flips=True, batch_size=1)
    assert len(dataset) == decode(tokenizer, tmp_path / "tokens", tmp_path / "out", batch_size=1) == 7
    for i, name in enumerate(NAMES):
        image = to_tensor(Image.open(photos / name))[None]
        tokens = tokenizer.encode(image)
        assert dataset[i].name == name
        assert torch.equal(dataset[i].tokens, tokens[0])
        assert torch.equal(dataset.flipped(i), tokenizer.encode(image.flip(-1))[0])
        decoded = to_tensor(Image.open(tmp_path / "out" / name))
        torch.testing.assert_close(decoded, as_stored(tokenizer.decode(tokens)[0]))


def test_neither_workers_nor_train_mode_nor_the_shards_change_the_tokens(
    tmp_path, photos, tokenizer, encoded
):
    again = encode(build().train(), photos, tmp_path, workers=1, shard_size=4)
    dataset = TokenDataset(encoded)
    assert dataset.classes == ("Katze", "犬")
    assert [item.label for item in dataset] == [0, 0, None, None, 1, 1, 1]
    assert dataset.encoding.fingerprint == tokenizer.fingerprint() == tokenizer_of(dataset).fingerprint()
    for item, expected in zip(again, dataset, strict=True):
        assert torch.equal(item.tokens, expected.tokens)
        assert item[1:] == expected[1:]


def test_broken_images_are_left_out_and_named(tmp_path, tokenizer, caplog):
    photos = put_pictures(tmp_path / "photos", [f"{i}.png" for i in range(8)])
    for i in (1, 3, 4, 5):  # 3 to 5 are the second shard
        (photos / f"{i}.png").write_bytes(b"" if i == 1 else b"no image")
    dataset = encode(tokenizer, photos, tmp_path / "tokens")
    assert [item.name for item in dataset] == ["0.png", "2.png", "6.png", "7.png"]
    assert list(dataset.broken) == ["1.png", "3.png", "4.png", "5.png"]
    assert dataset.broken["1.png"] == "the file is empty"
    assert all(f"{name}: " in caplog.text for name in dataset.broken)
    assert f"broken image no. 1 in {photos}, images 0 to 2: 1.png: the file is empty" in caplog.text


class Killed(BaseException):
    """Nothing of the process runs after this, so it is no Exception that could be handled."""


def run_until_killed(task: Any, call: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = getattr(os, call), []

    def deadly(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == at + 1:
            raise Killed
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, deadly)
        with pytest.raises(Killed):
            task()


# The tokenizer comes first: its weights are written, then the directory; three shards follow, and the header.
TOKENIZER_WRITES = {"fsync": 4, "replace": 1}


@pytest.mark.parametrize(
    ("call", "at"), [(call, i) for call, n in TOKENIZER_WRITES.items() for i in range(n + 4)]
)
def test_a_killed_encoding_goes_on_to_the_same_bytes(
    tmp_path, photos, tokenizer, encoded, monkeypatch, call, at
):
    run_until_killed(lambda: encode(tokenizer, photos, tmp_path), call, at, monkeypatch)
    with pytest.raises(TokenError):
        TokenDataset(tmp_path)
    steps: list[tuple[int, int]] = []
    encode(tokenizer, photos, tmp_path, on_progress=lambda *step: steps.append(step))
    assert contents(tmp_path) == contents(encoded)
    shards = max(0, at - TOKENIZER_WRITES[call])
    assert all(done > 3 * shards for done, _ in steps), "whole shards were encoded again"


def test_an_encoding_killed_within_a_shard_goes_on_to_the_same_bytes(tmp_path, photos, tokenizer, encoded):
    def stop(done: int, total: int) -> None:
        if done > 3:
            raise Killed

    with pytest.raises(Killed):
        encode(tokenizer, photos, tmp_path, on_progress=stop)
    encode(tokenizer, photos, tmp_path)
    assert contents(tmp_path) == contents(encoded)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_a_killed_decoding_goes_on_to_the_same_pictures(tmp_path, tokenizer, encoded, monkeypatch, call, at):
    decode(tokenizer, encoded, tmp_path / "whole", batch_size=1)

    def task(on_progress: Progress = unwatched) -> None:
        decode(tokenizer, encoded, tmp_path / "out", batch_size=1, on_progress=on_progress)

    run_until_killed(task, call, at, monkeypatch)
    steps: list[tuple[int, int]] = []
    task(lambda *step: steps.append(step))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert len(steps) == 7 - max(0, at - 1), "the first write is a note, then each is an image"


def test_a_finished_encoding_is_not_done_again(tmp_path, photos, tokenizer, monkeypatch):
    encode(tokenizer, photos, tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(Tokenizer, "encode", None)
    encode(tokenizer, photos, tmp_path)
    assert contents(tmp_path) == before


def edit(photos: Path) -> None:
    picture(20).save(photos / "stray.png")


def rename(photos: Path) -> None:
    (photos / "stray.png").rename(photos / "strange.png")


def move_to_another_class(photos: Path) -> None:
    (photos / "Katze" / "b.png").rename(photos / "犬" / "b.png")


def swap(photos: Path) -> None:
    """Same names, sizes in bytes and number of images, as after a rotation by a program that keeps times."""
    first, second = photos / "é.png", photos / "stray.png"
    data, other = (path.read_bytes().ljust(4096, b"\0") for path in (first, second))
    first.write_bytes(other)
    second.write_bytes(data)


@pytest.mark.parametrize("change", [edit, rename, move_to_another_class, swap])
def test_images_that_changed_are_encoded_again(tmp_path, photos, tokenizer, caplog, change):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    encode(tokenizer, folder, tmp_path / "tokens")
    change(folder)
    steps: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO, "lgq"):
        again = encode(tokenizer, folder, tmp_path / "tokens", on_progress=lambda *step: steps.append(step))
    assert "of 3 token files in" in caplog.text
    assert "do not have the images as they are now: encoding them again" in caplog.text
    assert steps[0][0] > 1, "the last shard has the same images in each case"
    assert contents(tmp_path / "tokens") == contents(encode(tokenizer, folder, tmp_path / "fresh").path)
    assert len(again) == len(NAMES)


def test_a_copied_folder_keeps_its_tokens(tmp_path, photos, tokenizer, caplog, monkeypatch):
    for machine in ("here", "there"):
        shutil.copytree(photos, tmp_path / machine / "photos", copy_function=shutil.copyfile)
    monkeypatch.chdir(tmp_path / "here")
    encode(tokenizer, Path("photos"), Path("tokens"))
    shutil.copytree("tokens", tmp_path / "there" / "tokens")
    monkeypatch.chdir(tmp_path / "there")
    monkeypatch.setattr(Tokenizer, "encode", None)
    with caplog.at_level(logging.INFO, "lgq"):
        encode(tokenizer, Path("photos"), Path("tokens"))
    assert "tokens is already complete: nothing was encoded" in caplog.text


def test_tokens_that_are_encoded_again_are_unfinished_meanwhile(tmp_path, photos, tokenizer):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    encode(tokenizer, folder, tmp_path / "tokens")
    edit(folder)

    def stop(_done: int, _total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        encode(tokenizer, folder, tmp_path / "tokens", on_progress=stop)
    with pytest.raises(TokenError, match="is unfinished, with 3 shards"):
        TokenDataset(tmp_path / "tokens")
    encode(tokenizer, folder, tmp_path / "tokens")
    assert contents(tmp_path / "tokens") == contents(encode(tokenizer, folder, tmp_path / "fresh").path)


def test_shards_without_a_digest_of_their_images_are_read_and_encoded_again(
    tmp_path, photos, tokenizer, encoded, monkeypatch
):
    real = TokenWriter._note
    with monkeypatch.context() as patch:  # as earlier versions wrote them

        def without(self: TokenWriter, *arguments: Any) -> dict[str, Any]:
            note = real(self, *arguments)
            del note["data_sha256"]
            return note

        patch.setattr(TokenWriter, "_note", without)
        dataset = encode(tokenizer, photos, tmp_path)
    assert [item.name for item in dataset] == NAMES
    encode(tokenizer, photos, tmp_path)
    assert contents(tmp_path) == contents(encoded)


def test_a_repaired_image_is_encoded_and_one_that_is_still_broken_named_again(tmp_path, tokenizer, caplog):
    photos = put_pictures(tmp_path / "photos", [f"{i}.png" for i in range(8)])
    whole = (photos / "1.png").read_bytes()
    (photos / "1.png").write_bytes(whole[:-40])
    (photos / "7.png").write_bytes(b"no image")
    assert len(encode(tokenizer, photos, tmp_path / "tokens")) == 6
    caplog.clear()
    again = encode(tokenizer, photos, tmp_path / "tokens")
    assert list(again.broken) == ["1.png", "7.png"]
    assert [f"{name}: " in caplog.text for name in again.broken] == [True, True]
    (photos / "1.png").write_bytes(whole)
    caplog.clear()
    mended = encode(tokenizer, photos, tmp_path / "tokens")
    assert len(mended) == 7
    assert list(mended.broken) == ["7.png"]
    assert "7.png: " in caplog.text
    assert "1.png: " not in caplog.text


def test_a_broken_image_is_tried_again_though_its_file_is_the_same(tmp_path, tokenizer, monkeypatch):
    photos = put_pictures(tmp_path / "photos", ["a.png", "b.png"])
    real = StoredImage.rgb

    def short_of_memory(image: StoredImage, **options: Any) -> Image.Image:
        if image.name == "b.png":
            raise BrokenImage(image.name, "MemoryError")
        return real(image, **options)

    with monkeypatch.context() as patch:
        patch.setattr(StoredImage, "rgb", short_of_memory)
        assert list(encode(tokenizer, photos, tmp_path / "tokens").broken) == ["b.png"]
    assert encode(tokenizer, photos, tmp_path / "tokens").broken == {}


def test_nothing_is_left_behind_where_no_image_can_be_read(tmp_path, tokenizer):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.png"):
        (photos / name).write_bytes(b"no image")
    with pytest.raises(DataError, match=r"none of 2 images can be read in .*photos.*, such as a\.png \("):
        encode(tokenizer, photos, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


def test_a_directory_of_other_files_or_of_the_images_is_spared(tmp_path, photos, tokenizer):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    before = contents(tmp_path)
    with pytest.raises(LGQError, match="is the folder of the images: give a new directory"):
        encode(tokenizer, folder, folder)
    with pytest.raises(LGQError, match="not a directory of tokens, and it is not empty: it holds photos"):
        encode(tokenizer, photos, tmp_path)
    assert contents(tmp_path) == before
    assert len(encode(tokenizer, folder, folder / "tokens")) == len(
        encode(tokenizer, folder, folder / "tokens")
    )


@pytest.mark.parametrize("place", ["tokenizer", "tokenizer/best"])
def test_another_tokenizer_or_a_run_in_its_place_is_spared(tmp_path, photos, tokenizer, place):
    build(seed=1).save_pretrained(tmp_path / place)
    before = contents(tmp_path)
    with pytest.raises(PretrainedError, match="tokenizer holds something else"):
        encode(tokenizer, photos, tmp_path)
    assert contents(tmp_path) == before


def test_tokens_without_their_tokenizer_get_it_from_the_same_call(tmp_path, photos, tokenizer, encoded):
    dataset = encode(tokenizer, photos, tmp_path)
    shutil.rmtree(tmp_path / "tokenizer")
    with pytest.raises(TokenError, match=r"holds no tokenizer/.*encode again"):
        tokenizer_of(dataset)
    encode(tokenizer, photos, tmp_path)
    assert contents(tmp_path) == contents(encoded)
    build(seed=1).save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(TokenError, match="holds tokens of tokenizer"):
        tokenizer_of(dataset)


def test_tokens_in_place_of_a_model_are_told_from_it(photos, encoded, tmp_path):
    with pytest.raises(PretrainedError, match=r"holds tokens, and this needs a generator: .*train-generator"):
        sample(encoded, tmp_path / "s.png")
    with pytest.raises(PretrainedError, match=r"holds tokens, and this needs a tokenizer: .*/tokenizer\.$"):
        reconstruct(encoded, photos, tmp_path / "out")


def test_tokens_of_another_tokenizer_are_refused_both_ways(tmp_path, photos, encoded):
    stranger = build(seed=1)
    with pytest.raises(TokenError, match="use the one that encoded it"):
        decode(stranger, encoded, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = contents(encoded)
    with pytest.raises(TokenError, match="its `fingerprint` is"):
        encode(stranger, photos, encoded)
    assert contents(encoded) == before


def test_damaged_tokens_are_refused_before_a_picture_is_written(tmp_path, photos, tokenizer):
    encode(tokenizer, photos, tmp_path / "tokens")
    last = tmp_path / "tokens" / "tokens-00002.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(TokenError, match=r"tokens-00002\.safetensors is cut short"):
        decode(tokenizer, tmp_path / "tokens", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pictures_of_other_tokens_and_other_files_are_not_mixed(tmp_path, photos, tokenizer, encoded):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "holiday.png").touch()
    with pytest.raises(TokenError, match="is not empty"):
        decode(tokenizer, encoded, tmp_path / "own")
    decode(tokenizer, encoded, tmp_path / "out")
    smaller = encode(tokenizer, photos, tmp_path / "tokens", image_size=8)
    assert smaller.encoding.grid == smaller[0].tokens.shape == (2, 2)
    with pytest.raises(TokenError, match="holds images of other tokens"):
        decode(tokenizer, tmp_path / "tokens", tmp_path / "out")


def tokens_named(folder: Path, tokenizer: Tokenizer, names: list[str]) -> Path:
    tokens = torch.arange(len(names))[:, None, None].expand(-1, 2, 2)
    write_tokens(folder, tokens, names=names, codebook_size=300, fingerprint=tokenizer.fingerprint())
    return folder


def test_images_of_one_name_become_files_of_their_own(tmp_path, tokenizer):
    names = ["a.jpg", "a.png", "b/a.png", "a-1.png", "a.jpg"]
    decode(tokenizer, tokens_named(tmp_path / "tokens", tokenizer, names), tmp_path / "out")
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.png"))
    assert files == ["a-1-3.png", "a-1.png", "a-4.png", "a.png", "b/a.png"]


@pytest.mark.parametrize("name", ["../a.png", "/a.png", "b/../../a.png", "..", "", "a\0.png", "\ud800.png"])
def test_names_that_lead_outside_are_refused(tmp_path, tokenizer, name):
    tokens = tokens_named(tmp_path / "tokens", tokenizer, ["fine.png", name])
    with pytest.raises(TokenError, match="no file inside a folder"):
        decode(tokenizer, tokens, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"image_size": 18}, "`image_size` must be a multiple of f = 4, got 18"),
        ({"image_size": 0}, "`image_size` must be a multiple of f = 4, got 0"),
        ({"shard_size": 0}, "`shard_size` must be at least 1, got 0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path, photos, tokenizer, options, rule
):
    with pytest.raises(ValueError, match=rule):
        encode(tokenizer, photos, tmp_path / "tokens", **options)
    assert not (tmp_path / "tokens").exists()


def test_reconstructions_stand_beside_their_originals(tmp_path, tokenizer):
    paths = [tmp_path / "wide.png", tmp_path / "high.webp"]
    picture(1, 21, 16).save(paths[0])
    picture(2, 8, 31).save(paths[1], lossless=True)
    images, broken = reconstruct(tokenizer, paths, tmp_path / "out")
    assert broken == {}
    assert [image.path for image in images] == paths
    for image in images:
        original = to_tensor(Image.open(image.path).convert("RGB"))
        height, width = original.shape[1:]
        padded = torch.nn.functional.pad(original[None], (0, -width % 4, 0, -height % 4), mode="replicate")
        reconstruction = tokenizer.decode(tokenizer.encode(padded))[0, :, :height, :width]
        left, right = to_tensor(Image.open(image.file)).chunk(2, dim=2)
        torch.testing.assert_close(left, original)
        torch.testing.assert_close(right, as_stored(reconstruction))
        error = np.mean((original.numpy() - reconstruction.numpy()) ** 2)
        assert image.psnr == pytest.approx(10 * math.log10(2**2 / error), abs=1e-3)


def test_originals_are_never_overwritten_nor_pictures_of_the_same_name(tmp_path, tokenizer):
    put_pictures(tmp_path, ["a.png", "b/a.png"])
    before = contents(tmp_path)
    images, _ = reconstruct(tokenizer, [tmp_path / "a.png", tmp_path / "b" / "a.png"], tmp_path)
    assert [image.file.name for image in images] == ["a-reconstructed.png", "a-reconstructed-1.png"]
    assert contents(tmp_path).items() > before.items()


def test_pictures_of_an_earlier_call_are_named(tmp_path, tokenizer):
    photos = put_pictures(tmp_path / "photos", ["a/same.png", "b/same.png", "c/same.png"])
    paths = [photos / name / "same.png" for name in "abc"]
    reconstruct(tokenizer, paths, tmp_path / "out")
    reconstruct(tokenizer, paths, tmp_path / "out")
    with pytest.warns(LGQWarning, match=r"1 picture of earlier calls, such as same-reconstructed-2\.png"):
        reconstruct(tokenizer, paths[1:], tmp_path / "out")


def test_images_that_cannot_be_reconstructed_are_named_with_the_reason(tmp_path, tokenizer):
    put_pictures(tmp_path, ["good.png"])
    picture(0, 3, 40).save(tmp_path / "thin.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    paths = [tmp_path / name for name in ("thin.png", "bad.png", "gone.png", "good.png")]
    images, broken = reconstruct(tokenizer, paths, tmp_path / "out")
    assert [image.path.name for image in images] == ["thin.png", "good.png"]
    assert [Path(name).name for name in broken] == ["bad.png", "gone.png"]
    assert list(broken.values())[1] == "No such file or directory"
    with pytest.raises(DataError, match=r"none of 2 images can be reconstructed, such as .*bad\.png"):
        reconstruct(tokenizer, paths[1:3], tmp_path / "out")


def _encode_and_decode(photos: Path, folder: Path) -> int:
    steps: list[int] = []
    encode(build(), photos, folder / "tokens", on_progress=lambda done, _: steps.append(done))
    decode(build(), folder / "tokens", folder / "out", batch_size=1)
    return max(steps)


def test_two_processes_share_the_work_and_make_the_same_files(tmp_path, photos, tokenizer, encoded):
    assert on_processes(2, tmp_path / "ranks", _encode_and_decode, photos, tmp_path) == [4, 3]
    assert contents(tmp_path / "tokens") == contents(encoded)
    decode(tokenizer, encoded, tmp_path / "alone", batch_size=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_images_beside_the_folders_of_classes_are_named(tmp_path):
    data = put_pictures(tmp_path / "photos", ["cat/a.png", "stray.png"])
    with pytest.warns(LGQWarning, match=r"1 of 2 images lie beside .* draws only images of 'cat': move"):
        encode(build(), data, tmp_path / "tokens")


def test_a_picture_is_no_directory_of_decoded_images(tmp_path, tokenizer, encoded):
    with pytest.raises(LGQError, match=r"`out` must be a directory.*got .*decoded\.png"):
        decode(tokenizer, encoded, tmp_path / "decoded.png")
    assert not (tmp_path / "decoded.png").exists()


def test_a_picture_is_no_directory_of_reconstructions(tmp_path):
    data = put_pictures(tmp_path / "photos", ["a.png"])
    with pytest.raises(LGQError, match=r"`out` must be a directory.*got .*rec\.png"):
        reconstruct(build(), data, tmp_path / "rec.png")


@pytest.mark.parametrize("dry_run", [False, True])
def test_enlarged_images_are_counted_with_the_size_that_enlarges_none(tmp_path, dry_run):
    photos = put_pictures(tmp_path / "photos", ["a.png", "b.png", "c.png"])
    picture(9, 2 * SIDE, 2 * SIDE).save(photos / "large.png")
    out = () if dry_run else (tmp_path / "tokens",)
    work = encoding.estimate_encoding if dry_run else encoding.encode
    with pytest.warns(LGQWarning, match="3 of 4 images are smaller than 32 x 32") as warned:
        work(build(), photos, *out, image_size=2 * SIDE)
    assert [str(warning.message).endswith("`image_size` 16 enlarges none.") for warning in warned] == [True]


def test_a_single_enlarged_image_is_told_in_a_sentence():
    words = r"^1 of 2 images is smaller than 8 x 8 pixels and was enlarged: .* Leave such small images out\.$"
    with pytest.warns(LGQWarning, match=words):
        warn_of_enlarged(torch.tensor([1, 9]), 8, 2)
