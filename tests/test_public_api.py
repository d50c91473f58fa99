"""The public API: what `import lgq` offers, and that it loads nothing before it is used."""

import subprocess
import sys

import pytest

import lgq


def test_importing_the_package_imports_nothing_else():
    """So it takes less than 1.3 times `import torch`, by any measure."""
    code = "import sys, lgq; print([m for m in sys.modules if m.startswith('lgq.') or m == 'torch'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", lgq.__all__)
def test_every_public_name_is_there_and_has_a_docstring(name):
    assert getattr(lgq, name).__doc__
    assert name in dir(lgq)


def test_modules_are_attributes_and_unknown_names_are_not():
    assert lgq.quantizers.VQ is lgq.VQ
    assert lgq.__version__
    with pytest.raises(AttributeError, match="nonsense"):
        lgq.nonsense  # noqa: B018
