"""`playhead generate`: one prompt, its text as it comes, and how it ran."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from playhead.cli.command import MODEL, command, engine, flags_of
from playhead.cli.loading import fitted, loaded, sampling, sampling_of
from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.engine.progress import spinner
from playhead.graph.shapes import Reason
from playhead.llm import LLM
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.settings import Setting, declare
from playhead.types import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What to continue, with which model, and how to show it."""

    prompt: str = declare(MISSING, Setting(help="The text to continue.", is_positional=True))
    model: str = declare(EMBEDDED, MODEL)
    as_json: bool = declare(False, Setting(help="print JSON", flag="--json"))
    trace: Path | None = declare(None, Setting(help="write the steps for Perfetto or chrome://tracing", metavar="FILE"))


@command(
    flags_of(GenerateOptions),
    sampling(max_tokens=100, n=1),
    engine("model", "memory", "schedule", "graph", "cache"),
)
def generate(options: GenerateOptions, asked: Mapping[str, Any], config: EngineConfig) -> None:
    """Continue PROMPT with a model."""
    run_generate(Console(), options, asked, config)


def run_generate(console: Console, options: GenerateOptions, asked: Mapping[str, Any], config: EngineConfig) -> None:
    """Text alone goes to a pipe; a terminal also gets the prompt before it and the figures after it."""
    with loaded(options.model, config) as llm:
        params = fitted(llm, options.prompt, sampling_of(llm, asked))
        show_answer(console, llm, options, params)
        if options.trace is not None:
            llm.engine.timeline.write(options.trace)


def show_answer(console: Console, llm: LLM, options: GenerateOptions, params: SamplingParams) -> None:
    if options.as_json:
        output = whole(llm, options, params)
        console.out(json.dumps(as_record(output, llm.stats.modes)), highlight=False)
        return
    output = several(console, llm, options, params) if params.n > 1 else streamed(console, llm, options, params)
    if params.logprobs is not None:
        console.print(logprob_table(output, params.logprobs))
    if console.is_terminal:
        console.print(figures(output, llm.stats.modes), style="dim", highlight=False)


def whole(llm: LLM, options: GenerateOptions, params: SamplingParams) -> RequestOutput:
    with spinner("generating"):
        output = llm.generate(options.prompt, params)[0]
    if output.error is not None:
        raise output.error
    return output


def several(console: Console, llm: LLM, options: GenerateOptions, params: SamplingParams) -> RequestOutput:
    """All samples, one after the other, when the last one is done."""
    output = whole(llm, options, params)
    for completion in output.outputs:
        console.out(f"[{completion.index + 1}]", style="dim", highlight=False)
        show(console, completion.text)
        console.out()
    return output


def streamed(console: Console, llm: LLM, options: GenerateOptions, params: SamplingParams) -> RequestOutput:
    """One sample, shown as it grows."""
    num_shown, output = 0, None
    with spinner("capturing the first graphs") as stop_spinning:
        for output in llm.stream(options.prompt, params):
            if console.is_terminal and len(output.outputs[0].token_ids) == 1:
                stop_spinning()  # before the prompt: it clears the line it stands on
                console.out(options.prompt, style="bold", end="", highlight=False)
            text = output.outputs[0].text
            show(console, text[num_shown:])
            num_shown = len(text)
    console.out()
    assert output is not None, "a request that was taken ends with an output"
    return output


def show(console: Console, text: str) -> None:
    """Print a piece of text as it is. A terminal gets no control characters: a model could write escape sequences."""
    if console.is_terminal:
        text = "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
    console.out(text, end="", highlight=False)
    console.file.flush()


def figures(output: RequestOutput, modes: Mapping[str, int]) -> str:
    """The line under the text."""
    rate = tokens_per_s(output)
    first = time_to_first_token_s(output)
    return " · ".join(
        (
            f"{num_generated(output)} tokens" + (f", {rate:.1f} tokens/s" if rate is not None else ""),
            "no first token" if first is None else f"first token after {first:.2f} s",
            how_it_ran(modes),
            f"{output.num_cached_tokens} cached tokens",
        )
    )


def how_it_ran(modes: Mapping[str, int]) -> str:
    """Steps by mode, eager ones with the reason: "1 breakable graph step, 8 full graph steps (2 captured now)"."""
    counts: Counter[str] = Counter()
    num_captured = 0
    for key, count in modes.items():
        mode, reason = key.split(": ", 1)
        counts[f"eager ({reason})" if mode == Mode.EAGER else f"{mode} graph"] += count
        num_captured += count if reason == Reason.CAPTURE_NOW else 0
    steps = "steps: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{steps}, {num_captured} captured on first use" if num_captured else steps


def num_generated(output: RequestOutput) -> int:
    return sum(len(completion.token_ids) for completion in output.outputs)


def time_to_first_token_s(output: RequestOutput) -> float | None:
    """Seconds from the request to its first token, captures included."""
    metrics = output.metrics
    return None if metrics.first_token_s is None else metrics.first_token_s - metrics.arrival_s


def tokens_per_s(output: RequestOutput) -> float | None:
    """Tokens of all samples after each one's first, per second; None if there are none."""
    metrics, num_more = output.metrics, num_generated(output) - len(output.outputs)
    if metrics.first_token_s is None or metrics.finished_s is None or num_more < 1:
        return None
    return num_more / max(metrics.finished_s - metrics.first_token_s, 1e-9)


def as_record(output: RequestOutput, modes: Mapping[str, int]) -> dict[str, object]:
    """The output with vLLM's names, and the figures."""
    record = asdict(output)
    del record["metrics"]  # readings of a clock that means nothing elsewhere
    return record | {
        "tokens_per_s": tokens_per_s(output),
        "time_to_first_token_s": time_to_first_token_s(output),
        "steps": dict(modes),
    }


def logprob_table(output: RequestOutput, num_best: int) -> Table:
    """The chosen token of each position, and the best ones if they were asked for."""
    table = Table("sample", "token", "logprob", "best", box=None)
    for completion in output.outputs:
        for entries in completion.logprobs or ():
            chosen, *_ = entries.values()
            ranked = sorted((one.rank, one) for one in entries.values() if one.rank is not None)
            best = "  ".join(f"{one.decoded_token!r} {one.logprob:.2f}" for rank, one in ranked if rank <= num_best)
            text = repr(chosen.decoded_token).replace("[", "\\[")
            table.add_row(str(completion.index + 1), text, f"{chosen.logprob:.3f}", best.replace("[", "\\["))
    return table
