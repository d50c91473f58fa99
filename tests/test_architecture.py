"""`ls` is the architecture: imports point to lower tiers, packages are small, file names are unique."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import lgq

ROOT = Path(lgq.__file__).parent
TIERS = [
    {"errors"},
    {"checks", "config", "progress", "random"},
    {"distributed", "files"},
    {"model_sources", "ops", "results", "weights"},
    {"quantizers", "models", "data", "plots"},
    {"hub"},
    {"tokenizer"},
    {"maskgit", "interop"},
    {"metrics"},
    {"inference"},
    {"training"},
    {"evaluation", "runs"},
    {"bench"},
    {"experiments"},
    {"reporting", "viewer"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
"""Packages and modules from the lowest to the highest; those of one tier do not import each other."""
MOST_FILES, MOST_FILES_PER_PACKAGE = 173, 16
SOURCES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported_units(path: Path) -> set[str]:
    """Return the packages and top-level modules of lgq that a file imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import; name the module in full."
            inside = [f"lgq.{alias.name}" for alias in node.names]
            names += inside if node.module == "lgq" else [str(node.module)]
    return {name.split(".")[1] for name in names if name.startswith("lgq.")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_to_lower_tiers(path: Path):
    unit = path.relative_to(ROOT).parts[0].removesuffix(".py")
    (tier,) = (number for number, units in enumerate(TIERS) if unit in units)
    assert imported_units(path) <= set().union({unit}, *TIERS[:tier])


def test_forbidden_imports_would_be_seen(tmp_path: Path):
    source = tmp_path / "bad.py"
    source.write_text("import lgq.cli\nfrom lgq.training import x\nfrom lgq import bench\nimport torch\n")
    assert imported_units(source) == {"cli", "training", "bench"}
    source.write_text("from ..training import x\n")
    with pytest.raises(AssertionError, match="relative import"):
        imported_units(source)


def test_the_package_and_its_parts_are_small():
    files = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__main__.py")
    assert files.total() <= MOST_FILES
    assert max(files.values()) <= MOST_FILES_PER_PACKAGE


def test_every_file_name_is_its_own():
    """Except those of commands, which are named after what they call."""
    commands = (ROOT / "cli", ROOT / "bench")
    names = Counter(path.name for path in SOURCES if path.parent not in commands)
    assert {name for name, count in names.items() if count > 1} <= {"__init__.py", "base.py"}


def test_every_test_file_has_a_name_of_its_own():
    """Because pytest imports test files by their base names."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert {name for name, count in names.items() if count > 1} == set()
