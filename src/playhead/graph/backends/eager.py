"""No graph at all: every replay runs the callable again, over the same inputs and into the same outputs.

It keeps the contract of the other backends, so that the effect of graphs can be measured and bisected. Python does run
again here: errors that only a replay makes stay hidden.
"""

from __future__ import annotations


class EagerBackend:
    """Records nothing. Captures keep the callable itself."""

    name = "eager"
