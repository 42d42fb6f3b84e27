"""What a CPU runs fast: work by numpy for ops that the modules of `playhead.kernels` declare, and attention by rows.

A torch op costs several microseconds before it does anything, and a view of its memory another; at a decode step's
sizes that is most of its time. A `bind_` function is given an op's arguments once, and gives work that repeats the call
without torch.
"""
