"""The bidirectional transformer of MaskGIT (Chang et al. 2022), as LGQ (Altun et al. 2026) sizes it.

b = images, n = tokens per image, k = codes, m = positions to predict, d = width.

    transformer = MaskedTransformer(codebook_size=16_384, length=256, classes=1000)     # 51.3 M parameters
    logits = transformer(tokens, classes, where)            # at the positions where `where` is true

A masked token is `mask_token`; an image without a class has the class `null_class`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from lgq.checks import require_at_least, require_at_most
from lgq.errors import LGQError
from lgq.ops.numerics import attend

_INIT_STD = 0.02
_MAX_LAYERS = 1_000  # so that no settings file can ask for an endless network


@dataclass(frozen=True, kw_only=True)
class TransformerSettings:
    """Size of the network; the defaults are the paper's."""

    layers: int = 12
    """Number of blocks, each of attention and an MLP."""
    width: int = 512
    """Number of features per token."""
    heads: int = 8
    """Number of attention heads; divides the width."""
    hidden: int = 2048
    """Number of features inside the MLP of a block."""
    dropout: float = 0.1
    """Probability of dropout, of features and of attention weights."""

    def __post_init__(self) -> None:
        require_at_least(1, layers=self.layers, width=self.width, heads=self.heads, hidden=self.hidden)
        require_at_most(_MAX_LAYERS, layers=self.layers)
        if not 0 <= self.dropout < 1:
            raise LGQError(f"`dropout` must be at least 0 and below 1, got {self.dropout}.")
        if self.width % self.heads:
            raise LGQError(f"`heads` must divide `width`, got {self.heads} heads and width {self.width}.")


_PAPER = TransformerSettings()


class MaskedTransformer(nn.Module):
    """Predicts the codes of masked tokens from the other tokens and a class.

    codebook_size: number of codes.
    length: number of tokens per image.
    classes: number of classes.
    """

    def __init__(self, codebook_size: int, length: int, classes: int, settings: TransformerSettings = _PAPER):
        super().__init__()
        require_at_least(1, codebook_size=codebook_size, length=length, classes=classes)
        self.codebook_size, self.length, self.classes = codebook_size, length, classes
        self.mask_token, self.null_class = codebook_size, classes
        width = settings.width
        self.tokens = nn.Embedding(codebook_size + 1, width)
        self.class_tokens = nn.Embedding(classes + 1, width)
        self.positions = nn.Parameter(torch.empty(1 + length, width))
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.Sequential(*(_Block(settings) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(length, codebook_size))
        self.apply(_init_weights)
        nn.init.trunc_normal_(self.positions, std=_INIT_STD)

    def forward(
        self, tokens: Int64[Tensor, "b n"], classes: Int64[Tensor, " b"], where: Bool[Tensor, "b n"]
    ) -> Float[Tensor, "m k"]:
        """Return the logits of the codes at the positions `where`, image by image, from left to right.

        Other positions skip the last layer, which is the widest.
        """
        sequence = torch.cat([self.class_tokens(classes)[:, None], self.tokens(tokens)], dim=1)
        features = self.norm(self.blocks(self.dropout(sequence + self.positions)))[:, 1:]
        biases = F.embedding(where.nonzero(as_tuple=True)[1], self.bias)
        return torch.addmm(biases, self.head(features[where]), self.tokens.weight[: self.codebook_size].T)


class _Block(nn.Module):
    """Attention and an MLP, each with a norm before it and a skip connection around it."""

    def __init__(self, settings: TransformerSettings):
        super().__init__()
        width = settings.width
        self.attention_norm, self.attention = nn.LayerNorm(width), _Attention(settings)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, settings.hidden), nn.GELU(), nn.Linear(settings.hidden, width)
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.perceptron(self.perceptron_norm(x)))


class _Attention(nn.Module):
    """Self-attention of every token to every token."""

    def __init__(self, settings: TransformerSettings):
        super().__init__()
        self.heads, self.dropout = settings.heads, settings.dropout
        self.queries_keys_values = nn.Linear(settings.width, 3 * settings.width)
        self.out = nn.Linear(settings.width, settings.width)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        b, n, _ = x.shape
        parts = self.queries_keys_values(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        queries, keys, values = parts.unbind()
        mixed = attend(queries, keys, values, dropout=dropout)
        output: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=_INIT_STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
