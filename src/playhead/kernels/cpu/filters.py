"""`filter_thresholds` of `filters.py` by numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import Array, as_arrays
from playhead.kernels.filters import LOG2_E, WEIGHT_SCALE
from playhead.kernels.op import Work


def bind_filter_thresholds(*call: Any) -> Work:
    """The rows alone that filter something. Of a row, what top-k leaves is sorted, and nothing else."""
    thresholds, logits, temperature, top_k, top_p, log_min_p, greedy_below = as_arrays(call)

    def work() -> None:
        thresholds.fill(-math.inf)
        has_filter = (top_k > 0) | (top_p < 1) | (log_min_p > -math.inf)
        for row in np.flatnonzero(has_filter & (temperature >= greedy_below)):
            left = logits[row][logits[row] > -math.inf]  # no NaN either
            if not left.size or left.max() == math.inf:
                continue
            best = left.max()
            least = best + temperature[row] * log_min_p[row]
            if 0 < top_k[row] < left.size:
                place = left.size - top_k[row]
                by_k = np.partition(left, place)[place]
                left, least = left[left >= by_k], np.maximum(least, by_k)
            if top_p[row] < 1:
                least = np.maximum(least, least_of_share(left, best, temperature[row], top_p[row]))
            thresholds[row] = least

    return work


def least_of_share(left: Array, best: np.float32, temperature: np.float32, share: np.float32) -> np.float32:
    """The least logit that top-p keeps of these."""
    left = np.sort(left)[::-1]
    per_logit = np.float32(LOG2_E) / temperature
    through = (np.exp2((left - best) * per_logit) * np.float32(WEIGHT_SCALE)).astype(np.int64).cumsum()
    limit = max(1, int(float(share) * float(through[-1])))
    least: np.float32 = left[np.searchsorted(through, limit)]  # the first that reaches the limit with those above it
    return least
