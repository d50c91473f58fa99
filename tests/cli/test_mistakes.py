"""Mistakes of a user: each is named in one line, before any long work, and nothing is written."""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cheap_inception import use_cheap_networks
from command_line import TINY_GENERATOR, TINY_TOKENIZER, lgq, mistake
from PIL import Image

from lgq import Tokenizer, evaluation
from lgq.metrics.fid import Gaussian
from lgq.metrics.reference import Reference
from lgq.models.autoencoder import Backbone

TINY = {"train pocket-lgq": TINY_TOKENIZER, "train-generator pocket": TINY_GENERATOR}
STREAM = "'pipe:cat shards/shard-{000000..000002}.tar'"
STREAMED = f"train pocket-lgq --data {STREAM} --val-data photos"
TRAIN = "train-generator pocket --tokens train"
MISTAKES = [
    # Runs.
    ("no data is named", "train pocket-lgq --data ''"),
    ("hold no image", "train pocket-lgq --data empty"),
    ("--image-size must be a multiple of 2", "train pocket-lgq --data photos --image-size 15"),
    (
        "unknown field --quantizer-options tau_ed: did you mean 'tau_end'",
        "train pocket-lgq --data photos --quantizer-options tau_ed=1",
    ),
    (
        "set levels=[8,5,5,5], as for 1,000 codes (in a run, by --quantizer-options)",
        "train pocket-fsq --data photos --codebook-size 257",
    ),
    *(
        (message, f"train pocket-fsq --data photos --quantizer-options 'levels={levels}'")
        for levels, message in (
            ("8", "must be a list, got 8"),
            ("(8,x)", "must be a list, got '(8,x)'"),
            ("[8,2.5]", "must be a whole number, got 2.5"),
        )
    ),
    (
        "make 1000 codes, not 512",
        "train pocket-fsq --data photos --quantizer-options 'levels=(8, 5, 5, 5,)' --codebook-size 512",
    ),
    (
        "run.json sets --quantizer lgq, and the name of the run asks for fsq: leave out the name, or set "
        "--quantizer fsq",
        "train pocket-fsq --data photos --config run.json",
    ),
    ("--steps takes a whole number, got 'big'.", "train pocket-lgq --data photos --steps big"),
    ("--steps takes a whole number, got '1.5'.", "train pocket-lgq --data photos --steps=1.5"),
    ("--learning-rate takes a number, got '0,001'.", "train pocket-lgq --data photos --learning-rate 0,001"),
    (
        "--backbone.widths takes whole numbers, got 'wide'.",
        "train pocket-lgq --data photos --backbone.widths wide",
    ),
    ("holds no run to resume", "train pocket-lgq --data photos --resume must"),
    ("holds a run already", "train pocket-lgq --data photos --out run --resume never"),
    ("--learning-rate (was 0.001, now 1.0)", "train pocket-lgq --data photos --out run --learning-rate 1"),
    (
        "other settings: --quantizer (was 'lgq', now 'fsq'); go on with",
        f"train pocket-fsq --data photos --out run {' '.join(TINY_TOKENIZER)}",
    ),
    (
        "photos is the folder of the images: give a new directory as --out.",
        "train pocket-lgq --data photos --out photos",
    ),
    (
        "photos is the folder of the images: give a new directory as --out.",
        "train pocket-lgq --data shards/shard-000000.tar --val-data photos --out photos",
    ),
    (
        "photos/new lies in the folder of images photos",
        "train pocket-lgq --data photos --out photos/new",
    ),
    (
        "train is not a run directory, and it is not empty: it holds tokenizer and 2 more; give a new "
        "directory as --out.",
        "train pocket-lgq --data photos --out train",
    ),
    ("val is not a run directory", f"{TRAIN} --out val"),
    ("bird-photos is not a run directory", "train pocket-lgq --data photos --out bird-photos"),
    ("has no option --lr: did you mean --learning-rate?", "train pocket-lgq --data photos --lr 1"),
    ("belongs to no run", "train pocket-lgq --data photos --out tokenizer"),
    ("cannot start from tokenizer, as its", "train pocket-lgq --data photos --start-from tokenizer"),
    ("cannot start from tokenizer", "train pocket-lgq --data photos --start-from tokenizer --dry-run"),
    (
        "--frozen-tokens keeps encoder and quantizer",
        "train pocket-lgq --data photos --frozen-tokens --dry-run",
    ),
    ("is a generator, and this needs", "train pocket-lgq --data photos --start-from generator"),
    ("there is no directory gone", "train pocket-lgq --data photos --start-from gone"),
    (
        "(was random weights, now tokenizer)",
        "train pocket-lgq --data photos --out run --start-from tokenizer",
    ),
    ("blocked/images: File exists", "train pocket-lgq --data photos --out blocked --steps 1"),
    ("--val-data", f"train pocket-lgq --data {STREAM}"),
    ("--val-data", f"train pocket-lgq --data {STREAM} --val-data {STREAM}"),
    ("--val-data", f"train pocket-lgq --data photos --val-data {STREAM}"),
    ("with --steps", f"{STREAMED} --epochs 2"),
    ("4 readers", f"{STREAMED} --workers 4"),
    ("train without a dry run", f"{STREAMED} --dry-run"),
    ("exit status 9", f"{STREAMED.replace('.tar', '.tar; exit 9')} --out failed"),
    # Tokenizers and data.
    ("nowhere does not exist", "encode run --data nowhere"),
    ("give --image-size", "encode tokenizer --data photos"),
    ("multiple of f = 2", "encode run --data photos --image-size 15"),
    ("download the shards", f"encode run --data {STREAM}"),
    (
        "photos is the folder of the images: give a new directory as --out.",
        "encode run --data photos --out photos",
    ),
    (
        "tokenizer is not a directory of tokens, and it is not empty: it holds README.md and 2 more; give",
        "encode run --data photos --out tokenizer",
    ),
    ("run is not a directory of tokens", "encode run --data photos --out run"),
    ("there is no directory", "reconstruct gone photo.png"),
    ("there is no directory photo-f9: did you mean photo-f8?", "reconstruct photo-f9 gone.png"),
    ("gone.png does not exist: name image files or folders.", "reconstruct run gone.png"),
    ("none of 1 images can be reconstructed", "reconstruct run file"),
    ("there is no directory rum: did you mean run?", "reconstruct rum photo.png"),
    ("one that save_pretrained wrote, photo-f8 or owner", "reconstruct gone photo.png"),
    ("there is nothing to reconstruct", "reconstruct run"),
    (
        "photos/cat is the folder of the images: give a new directory as --out.",
        "reconstruct run photos/cat --out photos/cat",
    ),
    ("photos/new lies in the folder of images photos", "reconstruct run photo.png photos --out photos/new"),
    ("empty", "decode run empty"),
    ("empty", "decode empty"),
    ("there is nothing to decode", "decode"),
    *(
        ("is a generator, and this needs a tokenizer", words)
        for source in ("generator", "generator/best")
        for words in (
            f"encode {source} --data photos --image-size 8",
            f"reconstruct {source} photo.png",
            f"decode {source} val",
        )
    ),
    ("their --shard-size is 4, not 10000", "shard photos --out shards --seed 0"),
    ("other files than shards", "shard photos --out photos"),
    ("does not exist", "shard no/such"),
    ("has no option --data: DATA stands without it: lgq shard photos --out new", "shard --data photos"),
    (
        "has no option --image: IMAGE stands without it: lgq reconstruct run photo.png --out new",
        "reconstruct run --image=photo.png",
    ),
    ("is a stream", "shard 'pipe:cat a.tar'"),
    ("--shard-size must be at least 1", "shard photos --shard-size 0"),
    ("--data takes", f"experiment comparison --scale smoke --data {STREAM}"),
    ("--steps must be at least 1, got -4", "experiment comparison --scale smoke --data photos --steps -4"),
    ("--val-data takes", f"experiment comparison --scale smoke --data photos --val-data {STREAM}"),
    ("--show takes", f"experiment comparison --scale smoke --data photos --show {STREAM}"),
    # Drawing images.
    ("class 2 is not among 0..1", "sample generator --classes 1 2"),
    ("each class once, got 1 1", "sample generator --classes 1 1"),
    ("--count must be at least 1, got 0", "sample generator --count 0"),
    ("--samples must be at least 1, got 0", "sample generator --samples 0"),
    ("either --count, images per class, or --samples", "sample generator --count 2 --samples 2"),
    ("--batch-size must be at least 1, got 0", "sample generator --batch-size 0"),
    ("there is no directory", "sample gone"),
    ("is a tokenizer, and this needs a generator", "sample run"),
    ("is a tokenizer, and this needs a generator", "sample tokenizer"),
    ("photo-f8 is a tokenizer, and this needs a generator", "sample photo-f8"),
    ("trained on tokens of tokenizer", "sample mixed"),
    ("must end in .png, and be no directory, or", "sample gone --out grid.jpg"),
    ("must end in .png, and be no directory, or", "sample gone --out folder.png"),
    ("is a tokenizer, and this needs a generator", "inpaint run photo.png --box 0 0 4 4 --out new.png"),
    ("must end in .png, and be no directory, or", "inpaint gone photo.png --box 0 0 4 4 --out strip.jpg"),
    ("must end in .png, and be no directory, or", "inpaint gone photo.png --box 0 0 4 4 --out folder.png"),
    *(
        (message, f"inpaint generator photo.png {options} --out new.png")
        for message, options in (
            ("gone.png: No such file", "--mask gone.png --label 0"),
            ("--box takes 4 whole numbers, got 3: 0 0 16.", "--box 0 0 16"),
            ("--box takes 4 whole numbers, got 'half'.", "--box 0 0 half 4"),
            ("images of 8 x 8 pixels", "--box 0 0 9 8 --label 0"),
            ("either --mask, a file, or --box", "--label 0"),
            ("either --mask, a file, or --box", "--box 0 0 4 4 --mask photo.png --label 0"),
            ("give --label: cat, dog, or a number from 0 to 1", "--box 0 0 4 4"),
        )
    ),
    # Generators.
    ("unknown generator 'pockets': did you mean 'pocket'?", "train-generator pockets --tokens train"),
    ("unknown generator 'pocket-lgq': did you mean 'pocket'?", "train-generator pocket-lgq --tokens train"),
    ("holds tokens of tokenizer", f"{TRAIN} --tokenizer other-tokenizer"),
    ("holds tokens of tokenizer", f"{TRAIN} --val-tokens other-tokens"),
    ("is a generator, and this needs a tokenizer", f"{TRAIN} --tokenizer generator"),
    ("its class 1 is 'eel', not 'dog'", f"{TRAIN} --val-tokens birds"),
    ("its grid is 8 x 8, not 4 x 4", f"{TRAIN} --val-tokens large --dry-run"),
    ("name a directory of tokens", f"{TRAIN} --val-tokens generator"),
    ("name a directory of tokens", "train-generator pocket --tokens photos --dry-run"),
    ("does not exist: name a directory of tokens", "train-generator pocket --tokens gone"),
    ("has done 3 of its 3 steps, and --steps 2 asks for no more", f"{TRAIN} --out generator --steps 2"),
    ("is a tokenizer, and this needs a generator", f"{TRAIN} --start-from run"),
    ("is a tokenizer, and this needs a generator", f"{TRAIN} --start-from run --dry-run"),
    (
        "other layers (there 1, here 2): train with --transformer.layers 1",
        f"{TRAIN} --start-from generator --transformer.layers 2",
    ),
    ("--label-dropout must lie in 0..1, got 2", f"{TRAIN} --label-dropout 2"),
    ("run holds the run of another kind of model", f"{TRAIN} --out run"),
    ("--transformer.width (was 16, now 32)", f"{TRAIN} --out generator --transformer.width 32"),
    (
        "has no option --data: did you mean --tokens?",
        "train-generator pocket --data train",
    ),
    # Evaluation.
    ("nowhere does not exist", "evaluate tokenizer --data nowhere --image-size 8"),
    ("give --image-size", "evaluate tokenizer --data photos"),
    ("--images must be at least 1", "evaluate run --data photos --images 0"),
    ("--image-size must be", "evaluate run --data photos --image-size 0"),
    ("download the shards", f"evaluate run --data {STREAM}"),
    ("photos is the folder of the images", "evaluate run --data photos --images 3 --out photos"),
    ("photos/new lies in the folder of images photos", "evaluate run --data photos --out photos/new"),
    ("photos/new lies in the folder of images photos", "evaluate generator --data photos --out photos/new"),
    *(
        (message, f"evaluate generator {options}")
        for message, options in (
            ("--data or with --reference: give one", "--data photos --reference three.npz"),
            ("is a generator, to which --geometry does not apply", "--data photos --geometry pca"),
            (
                "--sampling-seeds must be one or more different numbers",
                "--data photos --sampling-seeds 1 2 1",
            ),
            ("--samples must be at least 2, got 1", "--data photos --samples 1"),
            ("statistics need 2 images or more, got 1 in", "--data photos --images 1"),
            ("--images has no effect without --data", "--tokens val --images 3"),
            ("--masked-images has no effect without --tokens", "--data photos --masked-images 3"),
            ("--masked-images must be at least 1, got 0", "--tokens val --masked-images 0"),
            ("--train-tokens has no effect without --tokens", "--data photos --train-tokens train"),
            ("--batch-size must be at least 1, got 0", "--data photos --batch-size 0"),
            ("--batch-size must be at least 1, got 0", "--tokens val --batch-size 0"),
            ("has 3 features per image", "--tokens val --reference three.npz"),
            ("gone.npz does not exist", "--tokens val --reference gone.npz"),
            ("large does not suit the generator: its grid is 8 x 8, not", "--data photos --tokens large"),
            ("encode images of 8 x 8 pixels", "--data photos --tokens large"),
            ("holds tokens of tokenizer", "--data photos --tokens other-tokens"),
            ("it has no classes, and the generator has 2", "--data photos --tokens flat"),
            ("name a directory of tokens", "--data photos --tokens photos"),
            ("holds tokens of tokenizer", "--data photos --tokens val --train-tokens other-tokens"),
            ("its class 1 is 'eel', not 'dog'", "--tokens val --train-tokens birds"),
            ("--top-k has no effect without --data or --reference", "--tokens val --top-k 3"),
            ("--samples has no effect without --data or --reference", "--tokens val --samples 3"),
            ("statistics need 2 images or more, got 1 in", "--data single --tokens val"),
            ("file is a file: choose another directory", "--data photos --out file"),
        )
    ),
    ("trained on tokens of tokenizer", "evaluate mixed --tokens val"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a directory with all that a user has who went from images to a generator, and misfits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("home"))
        fill_home()
        yield Path.cwd()


def fill_home() -> None:
    for name in ("empty", "folder.png", "blocked"):
        Path(name).mkdir()
    Path("run.json").write_text('{"quantizer": "lgq"}')
    for name in ("file", "blocked/images"):
        Path(name).write_text("in the way")
    for folder, classes, count in (
        ("photos", ("cat", "dog"), 6),
        ("bird-photos", ("cat", "eel"), 2),
        ("flat-photos", ("",), 2),
        ("single", ("cat",), 1),
    ):
        for path in (Path(folder, name, f"{i}.png") for name in classes for i in range(count)):
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    shutil.copy("photos/cat/0.png", "photo.png")
    Gaussian(torch.zeros(3).double(), torch.eye(3).double()).save(Path("three.npz"))
    small = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)
    for name in ("tokenizer", "other-tokenizer"):
        Tokenizer(small, codebook_size=6).save_pretrained(name)
    for tokenizer, photos, tokens, size in (
        ("tokenizer", "photos", "train", 8),
        ("tokenizer", "photos", "val", 8),
        ("other-tokenizer", "photos", "other-tokens", 8),
        ("tokenizer", "bird-photos", "birds", 8),
        ("tokenizer", "flat-photos", "flat", 8),
        ("tokenizer", "photos", "large", 16),
    ):
        command = ["encode", tokenizer, "--data", photos, "--out", tokens, "--image-size", size]
        lgq(*command, "--workers", 0)
    lgq("shard", "photos", "--out", "shards", "--shard-size", 4, "--seed", 0)
    lgq("train", "pocket-lgq", "--data", "photos", "--out", "run", "--steps", 1, *TINY_TOKENIZER)
    lgq("train-generator", "pocket", "--tokens", "train", "--out", "generator", *TINY_GENERATOR)
    shutil.copytree("generator/best", "mixed")
    shutil.rmtree("mixed/tokenizer")
    shutil.copytree("other-tokenizer", "mixed/tokenizer")


@pytest.fixture(autouse=True)
def nothing_long(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make long work fail in a way that no user's mistake does, and metric networks cheap."""

    def work(*arguments: object, **options: object) -> None:
        raise AssertionError("this is long work")

    for name in ("evaluate_generation", "evaluate_likelihood"):
        monkeypatch.setattr(evaluation, name, work)
    monkeypatch.setattr(Reference, "from_images", work)
    use_cheap_networks(monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize(("message", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_a_mistake_is_named_in_one_line(message, words, capsys):
    command, *options = shlex.split(words)
    name = f"{command} {options[0]}" if options else command
    out = [] if "--out" in options else ["--out", "new"]
    assert message in mistake(capsys, command, *options[:1], *TINY.get(name, []), *options[1:], *out)
    assert not list(Path().glob("new*"))


@pytest.mark.parametrize("out", ["file", "file/deep/out"])
@pytest.mark.parametrize(
    "words",
    [
        "train pocket-lgq --data photos --loss.lpips 0",
        "encode run --data photos",
        "reconstruct run photo.png",
        "evaluate run --data photos",
        "shard photos",
        "experiment comparison --scale smoke --data photos",
        "sample gone",
    ],
)
def test_a_place_where_nothing_can_be_written_is_named(words, out, capsys):
    assert "file" in mistake(capsys, *words.split(), "--out", out)
