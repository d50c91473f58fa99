"""Inference in ONNX: both exporters of torch give programs with the indices and codes of the quantizer."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from quantizer_family import DIM
from torch import Tensor, nn

from lgq import Tokenizer, load_tokenizer
from lgq.data.photographs import photograph_pixels
from lgq.data.transforms import to_tensor
from lgq.models.autoencoder import Backbone

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    # Both exporters use parts of torch that torch itself calls deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
exporters = pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])


class Calls(nn.Module):
    """A module whose forward is one method of another."""

    def __init__(self, module: nn.Module, method: str):
        super().__init__()
        self.module, self.method = module, method

    def forward(self, x: Tensor) -> Any:
        return getattr(self.module, self.method)(x)


def exported(
    module: nn.Module, example: Tensor, *, dynamo: bool, free: dict[int, Any] | None = None
) -> Callable[[Tensor], list[Tensor]]:
    """Export a module; return a function that runs it in onnxruntime.

    free: axes that may have any length; None for the batch.
    """
    file = io.BytesIO()
    free = {0: torch.export.Dim("batch")} if free is None else free
    any_size: dict[str, Any] = {"dynamic_axes": {"x": {axis: f"axis_{axis}" for axis in free}}}
    if dynamo:
        any_size = {"dynamic_shapes": (free,)}
    options = {"input_names": ["x"], "dynamo": dynamo, "verbose": False, **any_size}
    if dynamo:
        torch.onnx.export(module.eval(), (example,), **options).save(file)
    else:
        torch.onnx.export(module.eval(), (example,), file, **options)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    return lambda x: [torch.from_numpy(np.asarray(part)) for part in session.run(None, {"x": x.numpy()})]


@exporters
def test_quantizers_run_in_onnx(build_class, dynamo):
    quantizer = build_class(channel_dim=1).eval()
    example = torch.randn(2, DIM, 3, 4)
    forward = exported(quantizer, example, dynamo=dynamo)
    encode = exported(Calls(quantizer, "encode"), example, dynamo=dynamo)
    decode = exported(Calls(quantizer, "decode"), quantizer.encode(example), dynamo=dynamo)
    for batch in (1, 5):
        z = torch.randn(batch, DIM, 3, 4)
        with torch.no_grad():
            expected = quantizer(z)
        quantized, indices, loss = forward(z)
        assert torch.equal(indices, expected.indices)
        assert torch.equal(encode(z)[0], expected.indices)
        torch.testing.assert_close(quantized, expected.quantized, rtol=0, atol=1e-5)
        torch.testing.assert_close(decode(expected.indices)[0], expected.quantized, rtol=0, atol=1e-5)
        assert float(loss) == 0


TINY = Backbone(widths=(8, 16), blocks=1, groups=4, attention_heads=2, latent_channels=8, latent_groups=2)


@exporters
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # torch's own GroupNorm raises one
@pytest.mark.parametrize(("quantizer", "stages"), [("lgq", 1), ("vq", 2)])
def test_tokenizers_run_in_onnx(quantizer, stages, dynamo):
    tokenizer = Tokenizer(TINY, quantizer, 64, stages=stages).eval()
    images = torch.rand(2, 3, 8, 8) * 2 - 1
    encode = exported(Calls(tokenizer, "encode"), images, dynamo=dynamo)
    decode = exported(Calls(tokenizer, "decode"), tokenizer.encode(images), dynamo=dynamo)
    for batch in (1, 5):
        images = torch.rand(batch, 3, 8, 8) * 2 - 1
        tokens = tokenizer.encode(images)
        assert torch.equal(encode(images)[0], tokens)
        torch.testing.assert_close(decode(tokens)[0], tokenizer.decode(tokens), rtol=0, atol=1e-5)


@exporters
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_the_shipped_tokenizer_runs_in_onnx_on_photographs_of_two_sizes(dynamo):
    tokenizer = load_tokenizer("photo-f8").eval()
    photograph = to_tensor(photograph_pixels("chelsea.png"))[None]
    example = photograph[..., :64, :96].contiguous()
    height, width = torch.export.Dim("height", min=2), torch.export.Dim("width", min=2)
    pixels, cells = {2: 8 * height, 3: 8 * width}, {1: height, 2: width}
    encode = exported(Calls(tokenizer, "encode"), example, dynamo=dynamo, free=pixels)
    decode = exported(Calls(tokenizer, "decode"), tokenizer.encode(example), dynamo=dynamo, free=cells)
    for size in ((128, 192), (200, 104)):
        image = photograph[..., : size[0], : size[1]].contiguous()
        tokens = tokenizer.encode(image)
        assert torch.equal(encode(image)[0], tokens)
        torch.testing.assert_close(decode(tokens)[0], tokenizer.decode(tokens), rtol=0, atol=1e-4)
