"""Attention over paged KV memory: one contract, a plain torch backend that is the oracle, and a Triton backend."""
