"""Measurements. Each module prints one JSON line per figure."""
