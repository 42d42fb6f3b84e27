"""A rank that ends before it has done anything. Tests start it in the place of `playhead.parallel.rank`."""

import sys

if __name__ == "__main__":
    sys.exit(3)
