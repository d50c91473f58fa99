"""No quantizer: the latents pass unchanged, for the continuous autoencoder that tokenizers may start from."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lgq.errors import LGQError
from lgq.quantizers.base import NO_CODE, Quantizer
from lgq.quantizers.quantized import Quantized


class Continuous(Quantizer):
    """Keeps every latent as it is; all indices are 0, and no index can be decoded.

    It has the other quantizers' arguments, so that a tokenizer can hold it in their place.
    """

    label = "Continuous"
    learned_codes = False

    def __init__(self, dim: int, codebook_size: int = 1, *, channel_dim: int = -1, seed: int | None = None):
        super().__init__(dim, codebook_size, channel_dim=channel_dim, seed=seed)

    def forward(self, z: Float[Tensor, "*shape"], mask: Bool[Tensor, "*vectors"] | None = None) -> Quantized:
        vectors, tokens, _ = self._to_vectors(z, mask)
        indices = torch.zeros(tokens, dtype=torch.int64, device=z.device)
        if mask is not None:
            indices, z = indices.masked_fill(~mask, NO_CODE), z * mask.unsqueeze(self.channel_dim)
        return Quantized(z, indices, vectors.new_zeros(()))

    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        return Quantized(z, self.select(z), z.new_zeros(()))

    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, " n"]:
        return torch.zeros(len(z), dtype=torch.int64, device=z.device)

    def lookup(self, indices: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
        raise LGQError("a continuous autoencoder has no codes to decode: train a tokenizer, from it or not.")

    def reset_parameters(self, seed: int) -> None:
        """Do nothing: there are no parameters."""
