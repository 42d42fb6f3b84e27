"""Ops of the model and the sampler. Each is declared once, over its torch reference: `op.py` says how.

`triton/` holds the kernels that a GPU runs, `cpu/` what a CPU runs by numpy. Both are imported by the first call that
needs them; Triton never on a machine without a GPU.
"""
