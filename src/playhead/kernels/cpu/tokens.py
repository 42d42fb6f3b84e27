"""The ops of `tokens.py` by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.kernels.cpu.arrays import as_arrays
from playhead.kernels.op import Work


def bind_newest_ids(*call: Any) -> Work:
    out, ids, newest = as_arrays(call)

    def work() -> None:
        np.copyto(out, ids)
        unread = ids < 0
        if unread.any():
            out[unread] = newest[-ids[unread]]

    return work


def bind_choose_tokens(*call: Any) -> Work | None:
    """Where nothing draws: an argmax at a twentieth of torch's time."""
    logits, least_keys, _, _, _, tokens, *_, draws = as_arrays(call)
    if draws or least_keys is not None:
        return None
    row = np.arange(len(logits))

    def work() -> None:
        logits.argmax(axis=1, out=tokens)
        # numpy takes the first NaN for the largest number, so a row has none if the chosen one is a number.
        if np.isnan(logits[row, tokens]).any():
            np.where(np.isnan(logits), -np.inf, logits).argmax(axis=1, out=tokens)

    return work


def bind_advance(*call: Any) -> Work:
    """The live requests alone."""
    *by_request, count, newest, outbox, table, page_size = as_arrays(call)
    max_tokens, num_boxes = table.shape[1] * page_size, len(outbox) - 1

    def work() -> None:
        num_requests = count.item()
        tokens, ids, positions, lengths, locs, generated, boxes, rows = (array[:num_requests] for array in by_request)
        newest[rows] = tokens
        outbox[boxes, np.arange(num_requests)] = tokens
        boxes[:] = np.where(boxes > 0, boxes % num_boxes + 1, 0)
        ids[:] = tokens
        np.minimum(positions + 1, max_tokens - 1, out=positions)
        np.minimum(lengths + 1, max_tokens, out=lengths)
        generated += 1
        page, slot = np.divmod(positions, page_size)
        locs[:] = table[rows, page] * page_size + slot

    return work
