"""Random numbers as hashes of a key, without a generator state (SplitMix64, Steele et al. 2014).

A value depends on its key alone: not on the process, the order of calls or the number of restarts. Every use
has a stream of its own, which is the first part of its keys.
"""

from collections.abc import Iterator
from enum import IntEnum
from itertools import count
from typing import Any

import numpy as np
from jaxtyping import Int

SAMPLING_BATCH = 64
"""Number of generated images per batch; each batch has a seed, so another size gives other images."""

_WORD = 2**64 - 1


class Stream(IntEnum):
    """Uses of random numbers; two streams never share a key."""

    CROP = 1
    EPOCH_ORDER = 2
    REPLACEMENT = 3
    SUBSET = 4
    COLOUR = 5
    FLIP = 6
    SAMPLING_SEED = 7
    SHARD_ORDER = 8
    STREAM_SHARDS = 9
    STREAM_BLOCK = 10
    FEATURES = 11
    BOOTSTRAP = 12


def random_bits(stream: Stream, *key: int) -> int:
    """Return 64 random bits for the key."""
    state = 0
    for part in (stream, *key):
        state = mix(state + (part & _WORD))
    return state


def batch_seed(seed: int, first: int) -> int:
    """Return the seed of a batch of generated images that begins with image `first`: 63 random bits."""
    return random_bits(Stream.SAMPLING_SEED, seed, first) >> 1


def random_order(length: int, stream: Stream, *key: int) -> Int[np.ndarray, " length"]:
    """Return a random permutation of 0 .. length - 1 for the key."""
    words = np.arange(length, dtype=np.uint64) + np.uint64(random_bits(stream, *key))
    return np.argsort(mix(words), kind="stable")


def random_fractions(stream: Stream, *key: int) -> Iterator[float]:
    """Yield endless random numbers in [0, 1) for the key."""
    first = random_bits(stream, *key)
    return ((mix(first + i) >> 11) * 2.0**-53 for i in count())


def mix(word: Any) -> Any:
    """Return the next word of SplitMix64, for an int or for an array of uint64."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
