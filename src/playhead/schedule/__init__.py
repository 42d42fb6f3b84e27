"""Requests and their limits: what is asked for, and what is refused. Torch-free."""
