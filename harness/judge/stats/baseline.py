"""Compares a time with those of earlier green runs: slower is by more than a bound and beyond their noise. Pure.

By median and median absolute deviation (MAD), which one disturbed run does not move.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.core.tolerances import MIN_RUNS

# Number of runs -> robust deviations above the median that normal noise reaches with a probability of 1e-4 while being
# the largest value, from 1.6 million draws each. Large for few runs, whose spread is a poor estimate.
_MIN_Z = (
    (5, 101.0),
    (6, 30.5),
    (8, 17.2),
    (10, 12.5),
    (12, 9.9),
    (14, 8.6),
    (16, 7.8),
    (20, 6.7),
    (30, 5.5),
    (50, 4.6),
)
_MIN_SPREAD = 0.01  # runs that agree better than this do so by chance
_SIGMA = 1.4826  # MAD x this estimates the standard deviation of a normal distribution


def least_z(runs: int) -> float:
    """Return the number of robust deviations that noise does not exceed, given so many runs."""
    return next(z for least, z in reversed(_MIN_Z) if runs >= least)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One green run of a cell."""

    run_id: str
    started: str  # ISO, UTC
    seconds: float  # of a step, as Throughput.step_busy_s; on a GPU of a pass, as Throughput.packed_s
    version: str = ""  # resolved version of its stack; a cell id only has the requested one


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Earlier runs of one cell: the same configuration in the same stack of the matrix."""

    runs: int  # only so many of the newest samples count
    samples: dict[str, list[Sample]] = field(default_factory=dict)  # by hardware, the newest first


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A time compared with earlier ones. Deviations are of logarithms, since noise of times is multiplicative."""

    ratio: float  # over the median of the samples
    low: float  # over the slowest sample
    high: float  # over the fastest sample
    z: float  # robust deviations above the median
    least_z: float  # z beyond which it is not noise
    median: float  # seconds, of the samples
    mad: float  # of the samples, relative
    samples: tuple[Sample, ...]

    def slower(self, bound: float) -> bool:
        """Return whether it is slower by more than the bound, beyond the noise, and slower than every sample."""
        return self.ratio > bound and self.z > self.least_z and self.low > 1


def compare(seconds: float, samples: Sequence[Sample]) -> Comparison | None:
    """Return the comparison; None if there are too few samples."""
    if len(samples) < MIN_RUNS:
        return None
    values = [sample.seconds for sample in samples]
    median = statistics.median(values)
    mad = statistics.median(abs(math.log(value / median)) for value in values)
    return Comparison(
        ratio=seconds / median,
        low=seconds / max(values),
        high=seconds / min(values),
        z=math.log(seconds / median) / max(_SIGMA * mad, _MIN_SPREAD),
        least_z=least_z(len(values)),
        median=median,
        mad=mad,
        samples=tuple(samples),
    )


def hardware_text(devices: Iterable[str], processors: Iterable[str]) -> str:
    """Return the hardware on which times are comparable: GPU models, and processor models in place of "cpu"."""
    models = list(processors)
    kinds = [models or [name] if name == "cpu" else [name] for name in devices]
    return " + ".join(dict.fromkeys(name for kind in kinds for name in kind)) or "unknown"
