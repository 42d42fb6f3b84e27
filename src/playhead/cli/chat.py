"""`playhead chat`: a conversation in the model's own format."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import typer

from playhead.cli.conversation import LEAVE, Conversation
from playhead.cli.generate import figures
from playhead.cli.lines import both_are_terminals, kept_history, next_line
from playhead.cli.loading import fitted, loaded, sampling_of
from playhead.cli.options import ChatOptions
from playhead.cli.screen import Screen
from playhead.engine.build import load_tokenizer
from playhead.engine.calls import Stream
from playhead.engine.config import EngineConfig
from playhead.engine.progress import spinner
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.env import state_directory
from playhead.errors import ChatTemplateError, ConfigError, RequestError, RequestFailed, StepFailed
from playhead.llm import LLM
from playhead.models.load import describe_model
from playhead.outputs import RequestOutput

HISTORY_FILE = "chat_history"
GREETING = "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves."


def run_chat(screen: Screen, options: ChatOptions, asked: Mapping[str, Any], config: EngineConfig) -> None:
    """Talk until the input ends."""
    refuse_without_template(options.model, config)
    is_interactive = both_are_terminals()
    directory = state_directory() if is_interactive and not options.no_history else None
    history = None if directory is None else directory / HISTORY_FILE
    with loaded(options.model, replace(config, max_num_seqs=1)) as llm, kept_history(history):
        own = replace(llm.get_default_sampling_params(), max_tokens=asked.get("max_tokens"))
        talk = Conversation(params=sampling_of(llm, asked), own_params=own, system=options.system)
        if is_interactive:
            screen.print(f"{options.model}: {GREETING}", style="dim", highlight=False)
        converse(screen, llm, talk, is_interactive=is_interactive)


def refuse_without_template(model: str, config: EngineConfig) -> None:
    """A model that never learnt a chat format answers nonsense; said before its weights are read."""
    description = describe_model(resolve_model_name(model), revision=config.revision)
    if load_tokenizer(description, config).chat_template is None:
        raise RequestError(
            "chat",
            f"model {model!r} has no chat template",
            "a model that has one",
            "Give a GGUF chat model, as in --model SmolLM2-135M-Instruct.gguf, or use playhead generate.",
        )


def converse(screen: Screen, llm: LLM, talk: Conversation, *, is_interactive: bool) -> None:
    """Read a line, answer it, until the input ends. A refused line is left out of the history."""
    while (line := next_line(is_interactive=is_interactive)) is not None:
        said = line.strip()
        if said == LEAVE:
            return
        try:
            if line.startswith("/"):
                reply = talk.obey(said)
                if is_interactive:
                    screen.out(reply, style="dim", highlight=False)
            elif said:
                answer(screen, llm, talk, said)
        except (ConfigError, RequestError, ChatTemplateError, RequestFailed, StepFailed) as error:
            typer.echo(f"playhead: {' '.join(str(error).split())}", err=True)


def answer(screen: Screen, llm: LLM, talk: Conversation, line: str) -> None:
    """Answer a line. What was said before Ctrl-C stays in the conversation."""
    before = llm.stats.copy()
    try:
        prompt = llm.chat_prompt(talk.messages_with(line))
        output = streamed(screen, llm.stream(prompt, fitted(llm, prompt, talk.params)))
    except RequestError as error:
        raise RequestError(error.where, error.found, error.wanted, f"{error.fix} /new starts again.") from None
    if output is not None and output.outputs[0].text.strip():
        talk.add(line, output.outputs[0].text)
    if output is not None and screen.is_terminal:
        screen.print(figures([output], llm.stats.since(before).modes), style="dim", highlight=False)


def streamed(screen: Screen, outputs: Stream) -> RequestOutput | None:
    """Show an answer as it grows, without the space around it. Gives the last output, None if Ctrl-C came before."""
    num_shown, output = 0, None
    try:
        with closing(outputs), spinner("thinking") as stop_spinning:
            for output in outputs:
                text = output.outputs[0].text.strip()  # what is stripped now and is no end comes with the next token
                if text:
                    stop_spinning()
                screen.show(text[num_shown:])
                num_shown = len(text)
    except KeyboardInterrupt:
        screen.out(" [stopped]", style="dim", end="", highlight=False)
    screen.out()
    return output
