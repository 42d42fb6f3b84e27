"""What a waiting person sees: a spinner or a bar on stderr, nothing when nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from playhead.graph.runner import CaptureReport


@contextmanager
def spinner(message: str) -> Iterator[Callable[[], None]]:
    """Spins until the block ends or the given function is called."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    with console.status(message) as status:
        yield status.stop


@contextmanager
def capture_bar() -> Iterator[Callable[[CaptureReport], None]]:
    """A bar over captured sizes. It starts again with each runner, whose report says how many it has."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("capturing graphs")

        def advance(report: CaptureReport) -> None:
            progress.update(task, total=report.total, completed=report.done)

        yield advance
