"""Seeds of requests that came without one. No torch."""

from __future__ import annotations

import hashlib
import secrets


def seed_of(engine_seed: int | None, arrival: int) -> int:
    """A 64-bit seed: a fresh one, or with a seed of the engine always the same for the same arrival.

    The engine's seed and the arrival are hashed, because `engine_seed + arrival` would give the second request of one
    run the tokens of the first request of another.
    """
    if engine_seed is None:
        return secrets.randbits(63)
    digest = hashlib.blake2b(f"{engine_seed} {arrival}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
