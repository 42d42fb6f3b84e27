"""Spinners and bars on stderr for a person who waits. Where stderr is no terminal, nothing is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    num_prompts: int, *, what: str = "processed prompts", enabled: bool = True
) -> Iterator[Callable[[RequestOutput], None]]:
    """A bar over finished prompts with their tokens per second, like vLLM's."""
    speed = TextColumn("{task.fields[speed]}")
    with bar(MofNCompleteColumn(), speed, enabled=enabled) as progress:
        task = progress.add_task(what, total=num_prompts, speed="")
        num_input = num_output = 0

        def advance(output: RequestOutput) -> None:
            nonlocal num_input, num_output
            num_input += len(output.prompt_token_ids)
            num_output += sum(len(completion.token_ids) for completion in output.outputs)
            seconds = progress.tasks[0].elapsed or 1e-9
            speed = f"input {num_input / seconds:.0f} tokens/s, output {num_output / seconds:.0f} tokens/s"
            progress.update(task, advance=1, speed=speed)

        yield advance


def bar(*columns: ProgressColumn, enabled: bool = True) -> Progress:
    """A bar that goes when it is done, and never comes when stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (enabled and console.is_terminal),
    )
