"""Kernels: each is a torch op with a plain torch reference (what the CPU runs) and a Triton launch (what CUDA runs).

`norm.py` holds the op and the reference, `norm_triton.py` the kernel; likewise for the others. Triton is imported by
the first call on a CUDA tensor and never on a machine that has none.
"""
