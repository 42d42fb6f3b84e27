"""Checkpoints in, logits out: one decoder for all families, driven by what a config says of each layer."""
