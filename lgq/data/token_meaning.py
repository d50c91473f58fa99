"""Do tokens mean the same here as there: the same codes, at the same places, of the same classes?

    TokenMeaning.of(TokenDataset("tokens/train")).require_of(TokenDataset("tokens/val"))

A generator has a meaning as well: that of the tokens it learned from.
"""

from dataclasses import dataclass

from lgq.data.token_format import TokenError
from lgq.data.tokens import TokenDataset


@dataclass(frozen=True, kw_only=True)
class TokenMeaning:
    """What tokens stand for, and with whom."""

    owner: str
    """As messages call it."""
    fingerprint: str
    """Of the tokenizer."""
    codebook_size: int
    stages: int
    grid: tuple[int, int]
    """Tokens along the height and the width of an image."""
    image_size: int
    """Side in pixels of the square images that have this grid."""
    classes: tuple[str, ...]
    """Label i is `classes[i]`; none of images without labels."""

    @classmethod
    def of(cls, tokens: TokenDataset) -> "TokenMeaning":
        encoding = tokens.encoding
        return cls(
            owner=str(tokens.path),
            fingerprint=encoding.fingerprint,
            codebook_size=encoding.codebook_size,
            stages=encoding.stages,
            grid=encoding.grid,
            image_size=encoding.image_size,
            classes=encoding.classes,
        )

    def require_of(self, tokens: TokenDataset) -> None:
        """Refuse tokens that mean anything else; the last classes may be missing.

        Shards name classes up to the largest label alone.
        """
        tokens.require_fingerprint(self.fingerprint)
        difference = self._difference(TokenMeaning.of(tokens))
        if difference is not None:
            raise TokenError(f"{tokens.path} does not suit {self.owner}: {difference}.")

    def _difference(self, other: "TokenMeaning") -> str | None:
        """The first, and the way out."""
        for name in ("codebook_size", "stages"):
            if getattr(other, name) != getattr(self, name):
                found, wanted = getattr(other, name), getattr(self, name)
                return f"its {name} is {found}, not {wanted}; use the same tokenizer"
        if other.grid != self.grid:
            found, wanted, pixels = (f"{h} x {w}" for h, w in (other.grid, self.grid, [self.image_size] * 2))
            return f"its grid is {found}, not {wanted}; encode images of {pixels} pixels"
        different = self._other_classes(other)
        return different and f"{different}; encode images of the same classes, in the same order"

    def _other_classes(self, other: "TokenMeaning") -> str | None:
        # Labels of images without classes are no first class, whatever that is called.
        if bool(other.classes) != bool(self.classes):
            return self._numbers(other)
        for number, (found, wanted) in enumerate(zip(other.classes, self.classes, strict=False)):
            if found != wanted:
                return f"its class {number} is {found!r}, not {wanted!r}"
        return self._numbers(other) if len(other.classes) > len(self.classes) else None

    def _numbers(self, other: "TokenMeaning") -> str:
        found, wanted = (_count_of(meaning.classes) for meaning in (other, self))
        return f"it has {found}, and {self.owner} has {wanted}"


def require_same_meaning(*sets: TokenDataset) -> None:
    """Refuse sets that do not compare; the last classes may be missing in any."""
    meaning = TokenMeaning.of(max(sets, key=lambda tokens: len(tokens.classes)))
    for tokens in sets:
        meaning.require_of(tokens)


def _count_of(classes: tuple[str, ...]) -> str:
    return f"{len(classes):,} class{'es' * (len(classes) > 1)}" if classes else "no classes"
