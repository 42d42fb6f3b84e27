"""Index types: an index says in its type which space it lives in. No torch here."""

from __future__ import annotations

from typing import NewType

FullLoc = NewType("FullLoc", int)
"""One token's place in the full pool: the identity of that token everywhere."""

WindowLoc = NewType("WindowLoc", int)
"""One token's place in a window group's pool; only the pool translates to it."""

Row = NewType("Row", int)
"""A running request's place in device tables; row 0 belongs to padding."""

Step = NewType("Step", int)
"""The number of a launched forward; 0 is 'before the first'."""
