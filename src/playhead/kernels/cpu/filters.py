"""`least_keys` of `filters.py` by numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import Array, as_arrays
from playhead.kernels.filters import EVERY_KEY, ID_BITS, LAST_ID, LOG2_E, WEIGHT_SCALE
from playhead.kernels.op import Work


def bind_least_keys(*call: Any) -> Work:
    """The rows alone that filter something. Of a row, what min-p and top-k leave is sorted, and nothing else."""
    least, logits, temperature, top_k, top_p, log_min_p, greedy_below = as_arrays(call)

    def work() -> None:
        least.fill(EVERY_KEY)
        has_filter = (top_k > 0) | (top_p < 1) | (log_min_p > -math.inf)
        for row in np.flatnonzero(has_filter & (temperature >= greedy_below)):
            ids = np.flatnonzero(logits[row] > -math.inf)  # no NaN either
            left = logits[row, ids]
            if not left.size or left.max() == math.inf:
                continue
            best = left.max()
            least[row] = max(EVERY_KEY, least_key_of(best + temperature[row] * log_min_p[row]))
            keys = least_key_of(left) | (ids ^ LAST_ID)
            keys = keys[keys >= least[row]]
            if 0 < top_k[row] < keys.size:
                place = keys.size - top_k[row]
                keys = np.partition(keys, place)[place:]
                least[row] = max(least[row], keys[0])
            if top_p[row] < 1:
                least[row] = max(least[row], least_of_share(keys, best, temperature[row], top_p[row]))

    return work


def least_of_share(keys: Array, best: np.float32, temperature: np.float32, share: np.float32) -> np.int64:
    """The least key that top-p keeps of these."""
    keys = np.sort(keys)[::-1]
    per_logit = np.float32(LOG2_E) / temperature
    through = (np.exp2((logits_of(keys) - best) * per_logit) * np.float32(WEIGHT_SCALE)).astype(np.int64).cumsum()
    limit = max(1, int(float(share) * float(through[-1])))
    least: np.int64 = keys[np.searchsorted(through, limit)]  # the first that reaches the limit with those above it
    return least


def least_key_of(logits: Array) -> Array:
    bits = (np.asarray(logits, np.float32) + np.float32(0)).view(np.int32)
    keys: Array = (bits ^ ((bits >> 31) & LAST_ID)).astype(np.int64) << ID_BITS
    return keys


def logits_of(keys: Array) -> Array:
    bits = (keys >> ID_BITS).astype(np.int32)
    return (bits ^ ((bits >> 31) & LAST_ID)).view(np.float32)
