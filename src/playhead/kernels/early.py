"""What a GPU's first kernel needs besides itself. None of it needs the model, so it is done while weights are read."""

from __future__ import annotations


def prepare_triton() -> None:
    """Import Triton and have it hash its own files, which it does before it looks for a kernel that it has compiled."""
    try:
        # Imported here: not every machine has Triton.
        from triton.runtime.cache import triton_key
    except ImportError:  # nothing to prepare; the first kernel says what is missing
        return
    triton_key()
