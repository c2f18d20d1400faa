"""Lognormal numbers as numpy's legacy generator draws them, without numpy: numpy.random.seed, numpy.random.lognormal.

numpy and Python use the same Mersenne twister, but derive its initial state from the seed differently (Matsumoto and
Nishimura, mt19937ar.c: init_genrand). Marsaglia's polar method gives normal numbers in pairs, the second one first.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache

_WORDS = 624  # 32-bit words of the twister's state
_LARGEST = 700.0  # its exponential is still finite, and far above any length


def lognormal(seed: int, index: int, *, mu: float, sigma: float) -> float:
    """Element `index` of numpy.random.lognormal(mu, sigma, n) after numpy.random.seed(seed).

    numpy rejects seeds above 2^32 - 1; here only their low 32 bits count.
    """
    return math.exp(min(mu + sigma * _normals(seed % 2**32).number(index), _LARGEST))


class _Normals:
    """The standard normal numbers of one seed; numbers already drawn are kept."""

    def __init__(self, seed: int) -> None:
        self._twister = random.Random()
        self._twister.setstate((3, (*_first_words(seed), _WORDS), None))
        self._drawn: list[float] = []

    def number(self, index: int) -> float:
        while len(self._drawn) <= index:
            self._drawn += self._pair()
        return self._drawn[index]

    def _pair(self) -> tuple[float, float]:
        while True:
            x, y = 2.0 * self._twister.random() - 1.0, 2.0 * self._twister.random() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                factor = math.sqrt(-2.0 * math.log(square) / square)
                return factor * y, factor * x


@lru_cache(maxsize=8)
def _normals(seed: int) -> _Normals:
    return _Normals(seed)


def _first_words(seed: int) -> list[int]:
    words = [seed]
    for index in range(1, _WORDS):
        before = words[-1]
        words.append((1812433253 * (before ^ (before >> 30)) + index) % 2**32)
    return words
