"""A rank that lives, and yet does not come: its third step begins after a minute of sleep.

Tests start it in the place of `playhead.parallel.rank`.
"""

from __future__ import annotations

import sys
import time

from playhead.parallel.rank import main
from playhead.step.orders import Follower, StepOrder

SLOW_STEP = 3
SLEEP_S = 60.0


class SlowFollower(Follower):
    """Follows two steps in time."""

    num_steps = 0

    def step(self, order: StepOrder) -> None:
        self.num_steps += 1
        if self.num_steps == SLOW_STEP:
            time.sleep(SLEEP_S)
        super().step(order)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), SlowFollower))
