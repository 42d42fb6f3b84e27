"""`playhead generate`: one prompt, its text as it comes, and how it ran."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from playhead.cli import options
from playhead.cli.loading import asked_for, fitted, loaded, sampling_of
from playhead.cli.options import DEFAULTS, EngineFlags, engine_config
from playhead.engine.config import EngineConfig
from playhead.engine.progress import spinner
from playhead.graph.shapes import Mode, Reason
from playhead.llm import EMBEDDED, LLM
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateJob:
    """What one run is asked for."""

    prompt: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields; the model's own values stand for the others."""
    model: str = EMBEDDED
    config: EngineConfig = DEFAULTS
    as_json: bool = False
    trace: Path | None = None


# Typer reads a command's options from its parameters, so commands have as many as they have options.
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue.")],
    model: options.Model = EMBEDDED,
    max_tokens: options.MaxTokens = 100,
    temperature: options.ModelTemperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="end before this text; may be repeated")
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", metavar="N", help="samples; several do not stream")] = 1,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", metavar="N", help="show each token's, and the best N")
    ] = None,
    as_json: options.Json = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="write the steps for Perfetto or chrome://tracing")
    ] = None,
    device: options.Device = DEFAULTS.device,
    dtype: options.Dtype = DEFAULTS.dtype,
    max_model_len: options.MaxModelLen = DEFAULTS.max_model_len,
    max_num_seqs: options.MaxNumSeqs = DEFAULTS.max_num_seqs,
    max_num_batched_tokens: options.MaxNumBatchedTokens = DEFAULTS.max_num_batched_tokens,
    kv_memory_bytes: options.KvMemoryBytes = None,
    page_size: options.PageSize = DEFAULTS.page_size,
    enforce_eager: options.EnforceEager = False,
    graph_mode: options.GraphModeOption = None,
    no_prefix_caching: options.NoPrefixCaching = False,
) -> None:
    """Continue PROMPT with a model."""
    flags = EngineFlags(
        device=device,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_memory_bytes=kv_memory_bytes,
        page_size=page_size,
        enforce_eager=enforce_eager,
        graph_mode=graph_mode,
        no_prefix_caching=no_prefix_caching,
    )
    fields = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "stop": stop,
        "n": n,
        "logprobs": logprobs,
    }
    job = GenerateJob(
        prompt=prompt, asked=asked_for(fields), model=model, config=engine_config(flags), as_json=as_json, trace=trace
    )
    run_generate(Console(), job)


def run_generate(console: Console, job: GenerateJob) -> None:
    """Text alone goes to a pipe; a terminal also gets the prompt before it and the figures after it."""
    with loaded(job.model, job.config) as llm:
        params = fitted(llm, job.prompt, sampling_of(llm, job.asked))
        show_answer(console, llm, job, params)
        if job.trace is not None:
            llm.engine.timeline.write(job.trace)


def show_answer(console: Console, llm: LLM, job: GenerateJob, params: SamplingParams) -> None:
    if job.as_json:
        output = whole(llm, job, params)
        console.out(json.dumps(as_record(output, llm.stats.modes)), highlight=False)
        return
    output = several(console, llm, job, params) if params.n > 1 else streamed(console, llm, job, params)
    if params.logprobs is not None:
        console.print(logprob_table(output, llm))
    if console.is_terminal:
        console.print(figures(output, llm.stats.modes), style="dim", highlight=False)


def whole(llm: LLM, job: GenerateJob, params: SamplingParams) -> RequestOutput:
    with spinner("generating"):
        output = llm.generate(job.prompt, params)[0]
    if output.error is not None:
        raise output.error
    return output


def several(console: Console, llm: LLM, job: GenerateJob, params: SamplingParams) -> RequestOutput:
    """All samples, one after the other, when the last one is done."""
    output = whole(llm, job, params)
    for completion in output.outputs:
        console.out(f"[{completion.index + 1}]", style="dim", highlight=False)
        show(console, completion.text)
        console.out()
    return output


def streamed(console: Console, llm: LLM, job: GenerateJob, params: SamplingParams) -> RequestOutput:
    """One sample, shown as it grows."""
    num_shown, output = 0, None
    with spinner("capturing the first graphs") as stop_spinning:
        for output in llm.stream(job.prompt, params):
            if console.is_terminal and len(output.outputs[0].token_ids) == 1:
                stop_spinning()  # before the prompt: it clears the line it stands on
                console.out(job.prompt, style="bold", end="", highlight=False)
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
    del record["metrics"]  # readings of a clock that nobody else has
    return record | {
        "tokens_per_s": tokens_per_s(output),
        "time_to_first_token_s": time_to_first_token_s(output),
        "steps": dict(modes),
    }


def logprob_table(output: RequestOutput, llm: LLM) -> Table:
    """The chosen token of each position, and the best ones if they were asked for."""
    table = Table("sample", "token", "logprob", "best", box=None)

    def token_text(token_id: int) -> str:
        return llm.tokenizer.decode([token_id], skip_special_tokens=False, prompt_ids=output.prompt_token_ids)

    for completion in output.outputs:
        for entries in completion.logprobs or ():
            texts = [repr(token_text(entry.token_id)) for entry in entries]
            best = "  ".join(f"{text} {e.logprob:.2f}" for text, e in zip(texts[1:], entries[1:], strict=True))
            chosen = texts[0].replace("[", "\\[")
            table.add_row(str(completion.index + 1), chosen, f"{entries[0].logprob:.3f}", best.replace("[", "\\["))
    return table
