"""No graph at all: every replay runs the callable again, over the same inputs and into the same outputs.

It answers the contract of the other backends, so that what graphs change can be measured and bisected. Python does run
again here: what only a replay gets wrong stays hidden.
"""

from __future__ import annotations


class EagerBackend:
    """Records nothing. Captures keep the callable itself."""

    name = "eager"
