"""`playhead chat`: a conversation in the model's own format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from playhead.cli import options
from playhead.cli.generate import figures, show
from playhead.cli.loading import asked_for, fitted, loaded, sampling_of
from playhead.cli.options import DEFAULTS, EngineFlags, engine_config
from playhead.engine.progress import spinner
from playhead.errors import RequestError
from playhead.llm import EMBEDDED, LLM, load_tokenizer, resolve_model_name
from playhead.models.load import describe_model
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams

FORGET = "/new"
CONTEXT_TOKENS = 4096  # what the KV memory of a CPU holds of a small chat model


# Typer reads a command's options from its parameters, so commands have as many as they have options.
def chat(
    model: options.Model = EMBEDDED,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="what the model is told first")] = "",
    max_tokens: options.MaxTokens = 512,
    temperature: options.ModelTemperature = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    device: options.Device = DEFAULTS.device,
    dtype: options.Dtype = DEFAULTS.dtype,
    max_model_len: options.MaxModelLen = CONTEXT_TOKENS,
    kv_memory_bytes: options.KvMemoryBytes = None,
    enforce_eager: options.EnforceEager = False,
) -> None:
    """Talk with a chat model. /new forgets, Ctrl-D ends."""
    flags = EngineFlags(
        device=device,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=1,
        kv_memory_bytes=kv_memory_bytes,
        enforce_eager=enforce_eager,
    )
    asked = asked_for({"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed})
    config = engine_config(flags)
    refuse_without_template(model)
    with loaded(model, config) as llm:
        converse(Console(), llm, sampling_of(llm, asked), system)


def refuse_without_template(model: str) -> None:
    """A model that never learnt a chat format answers nonsense; said before its weights are read."""
    if load_tokenizer(describe_model(resolve_model_name(model))).chat_template is None:
        raise RequestError(
            "chat",
            f"model {model!r} has no chat template",
            "a model that has one",
            "Give a GGUF chat model, as in --model SmolLM2-135M-Instruct.gguf, or use playhead generate.",
        )


def converse(console: Console, llm: LLM, params: SamplingParams, system: str) -> None:
    """Read a line, answer it, until the input ends. A refused line is left out of the history."""
    opening = [{"role": "system", "content": system}] if system else []
    history = list(opening)
    while (line := next_line(console)) is not None:
        if line == FORGET:
            history = list(opening)
        if not line or line == FORGET:
            continue
        asked = [*history, {"role": "user", "content": line}]
        before = llm.stats.copy()
        try:
            prompt = llm.chat_prompt(asked)
            output = streamed(console, llm.stream(prompt, fitted(llm, prompt, params)))
        except RequestError as error:
            typer.echo(f"playhead: {error} {FORGET} starts again.", err=True)
            continue
        history = [*asked, {"role": "assistant", "content": output.outputs[0].text}]
        if console.is_terminal:
            console.print(figures(output, llm.stats.since(before).modes), style="dim", highlight=False)


def streamed(console: Console, outputs: Iterator[RequestOutput]) -> RequestOutput:
    """Show an answer as it grows, without the space around it, and give the last output."""
    num_shown = 0
    with spinner("thinking") as stop_spinning:
        for output in outputs:
            text = output.outputs[0].text.strip()  # what is stripped now and is no end comes with the next token
            if text:
                stop_spinning()
            show(console, text[num_shown:])
            num_shown = len(text)
    console.out()
    return output


def next_line(console: Console) -> str | None:
    """What the user says next, None when there is no more."""
    try:
        return input("> " if console.is_terminal and sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
