"""Python and commands of the README and the docs run: those of a page in their order, with small numbers."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from fuzz.seeds import encoded, tar
from PIL import Image

from lgq import weights
from lgq.cli import main
from lgq.quantizers import QUANTIZERS
from lgq.runs import named_run, tokenizer_names

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(p for g in ("*.md", "*/*.md") for p in sorted((ROOT / "docs").glob(g))),
]
TRAINING, CLI = ROOT / "docs" / "training.md", ROOT / "docs" / "cli.md"
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
SMALL = ["--vectors", "64", "--sizes", "32", "--repeats", "1"]
FEW_STEPS = ["--image-size", "32", "--batch-size", "2", "--workers", "0", "--steps", "2"]
FEW_STEPS += ["--schedule.warmup-steps", "0", "--loss.lpips", "0"]
TINY = [*FEW_STEPS, "--backbone.widths", "8", "8", "--backbone.groups", "4", "--codebook-size", "64"]
TINY_GENERATOR = ["--transformer.layers", "1", "--transformer.width", "8", "--transformer.heads", "1"]
TINY_GENERATOR += ["--batch-size", "2", "--steps", "2", "--schedule.warmup-steps", "0"]
GENERATED = ["--samples", "4", "--sampling-seeds", "0", "--workers", "0", "--steps", "2"]
LONG = {
    "bench quantizers --plugin": SMALL,
    "doctor": ["--vectors", "32", "--codebook-size", "64", "--repeats", "1"],
    "bench quantizers": [*SMALL, "--quantizers", "fsq"],
    "bench encode": SMALL,
    "bench train": ["--batch-size", "1", "--steps", "1", "--rounds", "1"],
    "bench evaluate": ["--images", "2", "--rounds", "1", "--features", "8"],
    "bench sample": ["--batch-size", "1", "--rounds", "1"],
    "evaluate runs/generator --data": GENERATED,
    "evaluate runs/generator": ["--masked-images", "4", "--workers", "0"],
    "evaluate runs/tiny-generator": ["--masked-images", "4", "--workers", "0"],
    "evaluate": ["--image-size", "32", "--workers", "0"],
    "experiment comparison --scale pocket": ["--scale", "smoke"],
    "experiment comparison --scale smoke --plugin": ["--only", "CosineVQ"],
    "inpaint": ["--steps", "2", "--label", "image"],
    "sample runs/tiny-generator": ["--classes", "0", "7", "--count", "2", "--steps", "2"],
    "sample runs/generator --out all": ["--samples", "2", "--steps", "2"],
    "sample runs/generator --out grid.png": ["--classes", "image", "--count", "2", "--steps", "2"],
    "sample": ["--count", "2", "--steps", "2"],
    "train-generator": TINY_GENERATOR,
    "train photo-lgq --data photos --out runs/photos --start-from": FEW_STEPS,
    "train pocket-fsq --data photos --out runs/grid": [*TINY, "--codebook-size", "1000"],
    "train": TINY,
}
"""Commands that take minutes as they stand."""
TESTED_ELSEWHERE = {"demo", "import", "view", "weights"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.strip()]


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A directory with the images that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    picture = encoded(Image.new("RGB", (64, 64), (200, 90, 30)), "JPEG")
    shard = tar({"0.jpg": picture, "0.cls": b"7"})
    for place in ("photos/cat.jpg", "photos/dog.jpg"):
        Path(place).parent.mkdir(exist_ok=True)
        Path(place).write_bytes(picture)
    Path("imagenet").mkdir()
    for split, shards in (("train", 128), ("val", 16)):
        for i in range(shards):
            Path(f"imagenet/{split}-{i:03d}.tar").write_bytes(shard)
    return tmp_path


@pytest.fixture
def registered_quantizers(user, monkeypatch):
    """Finds modules in the user's directory; forgets them and the quantizers that a page registers."""
    before = dict(QUANTIZERS)
    monkeypatch.syspath_prepend(user)
    yield
    for name in QUANTIZERS.keys() - before.keys():
        del QUANTIZERS[name]
    for path in user.glob("*.py"):
        sys.modules.pop(path.stem, None)


def save_files(page: Path) -> list[str]:
    """Write the blocks of Python that start with the name of a file; return the others."""
    others = []
    for code in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", code):
            Path(name[1]).write_text(code)
        else:
            others.append(code)
    return others


@every_page
@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # of torch, about its ONNX exporter
def test_python_of_a_page_runs(page, user, capsys, registered_quantizers):
    for code in save_files(page):
        if ".pretrained()" in code:
            skip_without(*weights.FETCHABLE)
        # Runs of a few steps stand for those that take hours.
        short = re.sub(r'\brun\("(?:pocket|photo)(-\w+)?"', r'run("smoke\1"', code)
        exec(compile(short, str(page), "exec"), {})


@every_page
def test_commands_of_a_page_run_in_their_order(page, user, capsys, registered_quantizers):
    save_files(page)
    for line in commands(page):
        command, _, file = line.partition(" > ")
        printed = StringIO()
        with redirect_stdout(printed) if file else nullcontext():
            run(command)
        if file:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(printed.getvalue())


def run(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        done = subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    elif program == "pip":
        named = [word for word in arguments if word not in ("install", "-c", "-e")]
        assert all((ROOT / word.split("[")[0]).exists() for word in named)
    elif program == "python3":
        # The environment is that of the Makefile, so that `make demo` and this line lead to the same place.
        (place,) = re.findall(r"^VENV \?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert arguments == ["-m", "venv", place, "&&", ".", f"{place}/bin/activate"]
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    elif program == "torchrun":
        # Its processes are tested elsewhere; here, that the command behind it is one.
        run(shlex.join(["lgq", *arguments[arguments.index("lgq") + 1 :], "--dry-run"]))
    elif program != "lgq":
        pytest.fail(f"no way to run {command!r} is known: teach this test")
    elif arguments[0] not in TESTED_ELSEWHERE:
        name = next((name for name in LONG if " ".join(arguments).startswith(name)), "")
        if name == "evaluate runs/generator --data":
            skip_without("inception-fid")
        main([*arguments, *LONG.get(name, [])])


def skip_without(*networks: str) -> None:
    if any(weights.status()[name] != "here" for name in networks):
        pytest.skip("needs weights of other networks: lgq weights fetch")


def test_the_reference_of_the_commands_is_up_to_date(monkeypatch):
    script = runpy.run_path(str(ROOT / "scripts" / "write_cli_reference.py"))
    assert script["reference"]() == script["PAGE"].read_text(), "run scripts/write_cli_reference.py"


# The warning is sent again and again: the first may come before the job, on a busy machine, passes it on.
WARNED = "trap 'exit 75' USR1; for i in {1..100}; do kill -USR1 $PPID; sleep 0.1; done; exit 1"


@pytest.mark.parametrize(
    ("command", "process", "code"),
    [
        ("train", "exit 75", "requeued"),
        ("train", WARNED, "requeued"),
        ("train", "exit 0", 0),
        ("train", "exit 2", 2),
        ("encode", "kill -USR1 $$", "requeued"),
        ("encode", "kill -KILL $$", 137),
    ],
)
def test_the_slurm_job_queues_itself_again_until_the_command_is_done(tmp_path, command, process, code):
    done, calls = run_slurm_job(tmp_path, command, process)
    assert done.returncode == (0 if code == "requeued" else code)
    assert f"python 3/8 local 1: -m lgq {command} imagenet256-lgq --data a b.tar --out run" in calls
    assert ("scontrol requeue 77" in calls) == (code == "requeued")


def run_slurm_job(folder: Path, command: str, process: str) -> tuple[subprocess.CompletedProcess, str]:
    """Run the job with stand-ins for Slurm and Python; return it, and what they were called with."""
    calls = folder / "calls"
    for name, body in {
        "scontrol": f'echo "scontrol $*" >> {calls}',
        "srun": f'echo "srun $*" >> {calls}; shift; SLURM_PROCID=3 SLURM_LOCALID=1 "$@"',
        "python": f'echo "python $RANK/$WORLD_SIZE local $LOCAL_RANK: $*" >> {calls}; {process}',
    }.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "8"}
    variables |= {"LGQ_COMMAND": command, "PATH": f"{folder}:{os.environ['PATH']}"}
    script = [ROOT / "docs" / "train.sbatch", "imagenet256-lgq", "--data", "a b.tar", "--out", "run"]
    done = subprocess.run(["bash", *map(str, script)], env=os.environ | variables, cwd=folder, check=False)
    return done, calls.read_text()


@every_page
def test_links_of_the_docs_lead_somewhere_and_no_placeholder_is_left(page):
    assert not re.findall(r"^[A-Z][A-Z_]+$", page.read_text(), re.MULTILINE)
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        place = page.parent / target if target else page
        assert place.exists(), target
        assert not heading or heading in _anchors(place), f"{target}#{heading}"


def test_the_docs_and_the_help_of_training_name_every_quantizer_and_scale():
    (names,) = re.findall(r"A name is a scale and a quantizer: (.*?)\. Runs", TRAINING.read_text(), re.DOTALL)
    scales = {name.split("-")[0] for name in tokenizer_names()} - {"smoke"}
    assert set(re.findall(r"`([\w-]+)`", names)) == {f"{scale}-" for scale in scales} | set(QUANTIZERS)
    (listed,) = re.findall(r"^NAME is a scale \((.*?)\) and", CLI.read_text(), re.MULTILINE)
    assert set(listed.split(", ")) == scales


def test_the_example_of_options_changes_the_codes_as_its_text_says():
    (size,) = re.findall(r"--out runs/sharper --codebook-size (\d+)", TRAINING.read_text())
    assert "a quarter of the codes" in TRAINING.read_text()
    assert int(size) * 4 == named_run("pocket-lgq").codebook_size


def test_files_that_the_architecture_names_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    files = [str(path) for pattern in ("lgq/**/*.*", "tests/*.py") for path in ROOT.glob(pattern)]
    for name in re.findall(r"`([\w/]+\.(?:py|toml))`", text):
        assert any(file.endswith(f"/{name}") for file in files), name


def _anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
