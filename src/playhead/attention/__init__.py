"""Attention over paged KV memory: one contract, backends for GPUs (Triton) and CPUs, and the plain torch oracle."""
