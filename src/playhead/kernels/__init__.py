"""Ops of the model and the sampler: each is a torch reference, with a Triton kernel where a GPU has one.

`norm.py` holds the op and the reference, `triton/norm.py` the kernel; likewise for the others. Triton is imported by
the first call that runs on a GPU, and never on a machine without one.
"""
