"""`playhead chat`: a conversation in the model's own format."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import typer
from rich.console import Console

from playhead.cli.command import MODEL, command, engine, flags_of
from playhead.cli.generate import figures, show
from playhead.cli.loading import fitted, loaded, sampling, sampling_of
from playhead.engine.build import load_tokenizer, resolve_model_name
from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.engine.progress import spinner
from playhead.errors import RequestError
from playhead.llm import LLM
from playhead.models.load import describe_model
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.settings import Setting, declare

FORGET = "/new"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Whom to talk to."""

    model: str = declare(EMBEDDED, MODEL)
    system: str = declare("", Setting(help="what the model is told first"))


@command(
    flags_of(ChatOptions),
    sampling("max_tokens", "sampling", max_tokens=512),
    engine("model", "memory", "graph"),
)
def chat(options: ChatOptions, asked: Mapping[str, Any], config: EngineConfig) -> None:
    """Talk with a chat model. /new forgets, Ctrl-D ends."""
    refuse_without_template(options.model)
    with loaded(options.model, replace(config, max_num_seqs=1)) as llm:
        converse(Console(), llm, sampling_of(llm, asked), options.system)


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
