"""Spinners and bars for a person who waits: on stderr where that is a terminal, in a cell where it is a notebook.

Elsewhere nothing is shown.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from playhead.graph.spec import CaptureReport
from playhead.models.checkpoint.fill import LoadProgress
from playhead.models.checkpoint.hub_download import FetchProgress
from playhead.outputs import RequestOutput

BAR_CHARS = 20
REDRAW_S = 0.1  # a notebook keeps every drawing on its way to the browser

MakeBar = Callable[..., Any]
"""`tqdm`, or whatever makes a bar as `tqdm` does, from `total` and `desc`."""


class PromptBar(Protocol):
    """A bar over prompts. `speed` is what is written beside it."""

    def advance(self, speed: str) -> None: ...

    def close(self) -> None: ...


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
def load_bar(model: str) -> Iterator[Callable[[LoadProgress], None]]:
    """A bar over the checkpoint's bytes."""
    with bar(DownloadColumn(binary_units=True)) as progress:
        task = progress.add_task(f"loading {model}", total=None)

        def advance(report: LoadProgress) -> None:
            progress.update(task, total=report.total_bytes, completed=report.num_bytes)

        yield advance


@contextmanager
def fetch_bar() -> Iterator[Callable[[FetchProgress], None]]:
    """A bar over the bytes of each file that is fetched, one after the other."""
    with bar(DownloadColumn(binary_units=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(report: FetchProgress) -> None:
            if report.file not in tasks:
                tasks[report.file] = progress.add_task(report.file, total=report.total_bytes)
            progress.update(tasks[report.file], completed=report.num_bytes)

        yield advance


@contextmanager
def capture_bar() -> Iterator[Callable[[CaptureReport], None]]:
    """A bar over captured sizes. It starts again with each runner, whose report says how many it has."""
    with bar(MofNCompleteColumn()) as progress:
        task = progress.add_task("capturing graphs", total=None)

        def advance(report: CaptureReport) -> None:
            progress.update(task, total=report.total, completed=report.done)

        yield advance


@contextmanager
def prompt_bar(
    num_prompts: int, *, what: str = "processed prompts", enabled: bool | MakeBar = True
) -> Iterator[Callable[[RequestOutput], None]]:
    """A bar over finished prompts with their tokens per second, like vLLM's. `enabled` may make the bar itself."""
    shown = chosen_bar(num_prompts, what, enabled)
    if isinstance(shown, NoBar):
        yield ignore
        return
    started_s = time.perf_counter()
    num_input = num_output = 0

    def advance(output: RequestOutput) -> None:
        nonlocal num_input, num_output
        num_input += len(output.prompt_token_ids)
        num_output += sum(len(completion.token_ids) for completion in output.outputs)
        seconds = max(time.perf_counter() - started_s, 1e-9)
        shown.advance(f"input {num_input / seconds:.0f} tokens/s, output {num_output / seconds:.0f} tokens/s")

    try:
        yield advance
    finally:
        shown.close()


def chosen_bar(total: int, what: str, enabled: bool | MakeBar) -> PromptBar:
    """The bar for where this program runs."""
    if not isinstance(enabled, bool):
        return GivenBar(enabled, total, what)
    if not enabled:
        return NoBar()
    console = stderr_console()
    if console.is_jupyter:
        return NotebookBar(total, what)
    # Two bars on one terminal would draw over each other, so threads beside the main one have none.
    is_alone = threading.current_thread() is threading.main_thread()
    return TerminalBar(total, what) if console.is_terminal and is_alone else NoBar()


@cache
def stderr_console() -> Console:
    """What says where a bar would be drawn: it looks at stderr and the environment anew whenever it is asked."""
    return Console(stderr=True)


def ignore(output: RequestOutput) -> None:
    """Moves no bar."""


class NoBar:
    """Nothing."""

    def advance(self, speed: str) -> None:
        return

    def close(self) -> None:
        return


class GivenBar:
    """A bar that the caller's own function makes."""

    def __init__(self, make: MakeBar, total: int, what: str) -> None:
        self._bar = make(total=total, desc=what, dynamic_ncols=True)

    def advance(self, speed: str) -> None:
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


class TerminalBar:
    """On stderr; it goes when it is done."""

    def __init__(self, total: int, what: str) -> None:
        self._progress = bar(MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
        self._task = self._progress.add_task(what, total=total, speed="")
        self._progress.start()

    def advance(self, speed: str) -> None:
        self._progress.update(self._task, advance=1, speed=speed)

    def close(self) -> None:
        self._progress.stop()


class NotebookBar:
    """In the output of a cell, where it stays. Only IPython is needed, which every notebook has."""

    def __init__(self, total: int, what: str) -> None:
        from IPython.display import display

        self._total, self._what, self._done, self._speed = total, what, 0, ""
        self._drawn_s = time.perf_counter()
        self._display = display(self._drawing(), raw=True, display_id=True)

    def _drawing(self) -> dict[str, str]:
        filled = BAR_CHARS if not self._total else BAR_CHARS * self._done // self._total
        line = (
            f"{self._what} {'█' * filled}{'░' * (BAR_CHARS - filled)} {self._done}/{self._total} {self._speed}".rstrip()
        )
        return {"text/plain": line, "text/html": f"<pre>{html.escape(line)}</pre>"}

    def advance(self, speed: str) -> None:
        self._done, self._speed = self._done + 1, speed
        if time.perf_counter() - self._drawn_s > REDRAW_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn_s = time.perf_counter()
        self._display.update(self._drawing(), raw=True)

    def close(self) -> None:
        self._draw()


def bar(*columns: ProgressColumn) -> Progress:
    """A bar that goes when it is done, and never comes when stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
