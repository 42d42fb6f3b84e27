"""Playhead: an inference engine that replays captured graphs over declared inputs."""

__version__ = "0.1.0"
