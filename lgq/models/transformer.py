"""The bidirectional transformer of MaskGIT (Chang et al. 2022), as LGQ (Altun et al. 2026) sizes it.

b = images, n = tokens of an image, k = codes, m = places whose codes are asked for, d = width.

    transformer = MaskedTransformer(codebook_size=16_384, length=256, classes=1000)     # 51.3 M parameters
    logits = transformer(tokens, classes, where)            # of the places where `where` is true

A token that is not known is `mask_token`; an image of no class in particular is of `null_class`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from lgq.checks import require_at_least, require_at_most
from lgq.errors import LGQError

_INITIAL_DEVIATION = 0.02
_MOST_LAYERS = 1_000  # so that no file of settings can ask for a network without end


@dataclass(frozen=True, kw_only=True)
class TransformerSettings:
    """Size of the network; the defaults are the paper's."""

    layers: int = 12
    """Blocks of attention and perceptron."""
    width: int = 512
    """Features of a token."""
    heads: int = 8
    """Of the attention; divides the width."""
    hidden: int = 2048
    """Features within a block's perceptron."""
    dropout: float = 0.1
    """Share of features, of attention's weights too, that training leaves out at random."""

    def __post_init__(self) -> None:
        require_at_least(1, layers=self.layers, width=self.width, heads=self.heads, hidden=self.hidden)
        require_at_most(_MOST_LAYERS, layers=self.layers)
        if not 0 <= self.dropout < 1:
            raise LGQError(f"dropout must be 0 or more and below 1, got {self.dropout}.")
        if self.width % self.heads:
            raise LGQError(f"heads must divide the width, {self.width}, got {self.heads}.")


_PAPER = TransformerSettings()


class MaskedTransformer(nn.Module):
    """From the tokens that are known and a class to the codes of the others.

    codebook_size: k.
    length: n.
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
        self.apply(_start)
        nn.init.trunc_normal_(self.positions, std=_INITIAL_DEVIATION)

    def forward(
        self, tokens: Int64[Tensor, "b n"], classes: Int64[Tensor, " b"], where: Bool[Tensor, "b n"]
    ) -> Float[Tensor, "m k"]:
        """Logits of the codes at the places `where`, image by image, each from left to right.

        What nobody asks for is not computed: the last layer is the widest.
        """
        features = self.head(self.features(tokens, classes)[where])
        biases = F.embedding(where.nonzero(as_tuple=True)[1], self.bias)
        return torch.addmm(biases, features, self.tokens.weight[: self.codebook_size].T)

    def features(
        self, tokens: Int64[Tensor, "b n"], classes: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b n {self.width}"]:
        """Of every token, before the head."""
        sequence = torch.cat([self.class_tokens(classes)[:, None], self.tokens(tokens)], dim=1)
        features: Tensor = self.norm(self.blocks(self.dropout(sequence + self.positions)))
        return features[:, 1:]

    @property
    def width(self) -> int:
        return self.tokens.embedding_dim


class _Block(nn.Module):
    """Attention and a perceptron, each behind a norm and around a skip."""

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
    """Every token looks at every token."""

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
        seen = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout)
        result: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return result


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=_INITIAL_DEVIATION)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
