"""Triton kernels: the CUDA bodies of the ops that the modules of `playhead.kernels` declare."""
