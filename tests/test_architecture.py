"""Imports point to lower tiers only, so that `ls` is the architecture."""

import ast
from pathlib import Path

import pytest

import lgq

ROOT = Path(lgq.__file__).parent
TIERS = {
    "checks": 0, "config": 0, "distributed": 0, "errors": 0, "files": 0, "ops": 0, "progress": 0, "random": 0,
    "results": 0, "weights": 0,
    "quantizers": 1, "models": 1, "data": 1, "plots": 1,
    "hub": 2, "tokenizer": 3, "maskgit": 4,
    "metrics": 5,
    "inference": 7,
    "training": 8,
    "evaluation": 8.5,
    "runs": 9,
    "bench": 10,
    "experiments": 11,
    "reporting": 12,
    "demo": 13,
    "cli": 14,
}  # fmt: skip
WITHIN_TIER_ZERO = {
    "checks": {"errors"},
    "config": {"errors"},
    "distributed": {"errors"},
    "files": {"config", "errors"},
    "ops": {"checks", "distributed", "errors"},
    "weights": {"errors", "files", "progress"},
    "results": {"checks", "config", "errors", "files"},
}


def unit_of(module: str) -> str:
    return module.split(".")[1]


def imported_units(path: Path) -> set[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import; name the module in full."
            inside = [f"lgq.{alias.name}" for alias in node.names]
            names += inside if node.module == "lgq" else [str(node.module)]
    return {unit_of(name) for name in names if name.startswith("lgq.")}


SOURCES = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_to_lower_tiers(path: Path):
    unit = path.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = {other for other, tier in TIERS.items() if tier < TIERS[unit]} | {unit}
    allowed |= WITHIN_TIER_ZERO.get(unit, set())
    assert imported_units(path) <= allowed


def test_a_relative_import_would_be_seen(tmp_path: Path):
    source = tmp_path / "bad.py"
    source.write_text("from ..training import x\n")
    with pytest.raises(AssertionError, match="relative import"):
        imported_units(source)


def test_a_forbidden_import_would_be_seen(tmp_path: Path):
    source = tmp_path / "bad.py"
    source.write_text("import lgq.cli\nfrom lgq.training import x\nfrom lgq import bench\nimport torch\n")
    assert imported_units(source) == {"cli", "training", "bench"}
