"""One model on several ranks: processes that have a part of every weight each, and run every step together.

The first rank is the process that made the engine. It plans steps and tells the others of them (`leader.py`). The
others load their parts and follow (`rank.py`). Ranks meet in collectives, which are ops of captured graphs.
"""
