"""Hybrid KV memory: pools derived from the model's layers, and an account of every page."""
