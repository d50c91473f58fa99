"""The dense references of the quantizers."""

import pytest
import torch

from lgq.quantizers import QUANTIZERS, build_quantizer

OPTIONS = [(name, {}) for name in QUANTIZERS] + [
    ("lgq", {"score": "dot", "tau_start": 0.3, "hard_gradient": True}),
    ("lgq", {"latent_weight": 1.0, "diversity_scale": "tokens"}),
    ("ibq", {"commitment_weight": 0.5, "entropy_weight": 0.0}),
    ("lfq", {"entropy_weight": 0.0, "inverse_temperature": 1.0}),
    ("simvq", {"transform": "linear", "weight": 1.0}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_a_quantizer_equals_its_dense_reference(name, options):
    ours, plain = (build_quantizer(name, 6, 32, **options).double() for _ in range(2))
    if plain.dense_matrices is None:
        with pytest.raises(NotImplementedError, match="no dense reference"):
            plain.dense_forward(torch.zeros(1, 6))
        return
    z = torch.randn(25, 6, dtype=torch.float64, requires_grad=True)
    for _ in range(2):  # the second time, codes that follow running means have moved
        results = []
        for quantizer, forward in ((ours, ours.quantize_vectors), (plain, plain.dense_forward)):
            quantized, indices, loss = forward(z)
            inputs = [z, *quantizer.parameters()]
            gradients = torch.autograd.grad(loss + quantized.square().sum(), inputs, allow_unused=True)
            results.append((quantized, indices, loss, *gradients))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)
