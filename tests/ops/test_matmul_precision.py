"""Operators on torch's matrix products compute them in full float32, and restore the global setting."""

import pytest
import torch

from lgq.ops import passes, search
from lgq.ops.assignment import soft_assignment
from lgq.ops.search import nearest_codes


def matmul_precisions():
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # which torch raises if `fp32_precision` alone was set
        precision = None
    return precision, torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.fixture(params=["highest", "high", "medium", "fp32_precision"])
def precisions(request, monkeypatch):
    """A global setting of matrix products, and what both passes of the operators find inside."""
    if request.param == "fp32_precision":
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision(request.param)
    inside = []
    for module, name in (
        (search, "blockwise_argmax"),
        (passes.TorchPasses, "weigh"),
        (passes.TorchPasses, "differentiate"),
    ):
        function = getattr(module, name)

        def recorded(*arguments, function=function):
            inside.append(matmul_precisions())
            return function(*arguments)

        monkeypatch.setattr(module, name, recorded)
    yield inside
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("compiled", [False, True])
def test_products_are_full_float32_whatever_the_global_setting(precisions, compiled):
    before = matmul_precisions()
    z, codes = (torch.randn(rows, 5, requires_grad=True) for rows in (20, 33))

    def loss(z, codes):
        return soft_assignment(z, codes, 0.5).codes.sum() + nearest_codes(z, codes).codes.sum()

    run = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    run(z, codes).backward()
    assert len(precisions) == 3
    for precision, cuda, cpu in precisions:
        assert precision == "highest"
        assert {cuda, cpu} <= {"none", "ieee"}
    assert matmul_precisions() == before


def test_an_error_restores_the_precision_of_products(precisions, monkeypatch):
    before = matmul_precisions()

    def fail(*arguments):
        raise RuntimeError("inside")

    for module, function in ((search, nearest_codes), (passes, lambda z, e: soft_assignment(z, e, 1.0))):
        monkeypatch.setattr(module, "blockwise_argmax", fail)
        with pytest.raises(RuntimeError, match="inside"):
            function(torch.randn(5, 3), torch.randn(6, 3))
        assert matmul_precisions() == before
