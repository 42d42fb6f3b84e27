"""Prompts from the command line, files and standard input, read before a model is loaded. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import BinaryIO

from playhead.cli.options import GenerateOptions, InputFormat
from playhead.env import user_path
from playhead.errors import ConfigError, shown

Text = str | list[int]
"""A prompt: text or token ids."""

STDIN = "-"
STDIN_NAME = "standard input"
MAX_BYTES = 64 << 20  # longer than any context; a prompt that streams for ever must end somewhere
ONE_OF = 'a text, a list of token ids, or an object with "prompt" or "prompt_token_ids"'


def read_prompts(options: GenerateOptions) -> list[Text]:
    """PROMPT first, then every file in its order; standard input where neither is given."""
    sources = list(options.file)
    prompts: list[Text] = []
    if options.prompt == STDIN:
        sources.insert(0, STDIN)
    elif options.prompt is not None:
        prompts.append(options.prompt)
    if not prompts and not sources:
        if sys.stdin is None or sys.stdin.isatty():
            raise ConfigError("PROMPT: found none. Give a text, --file PATH, or pipe a text into this command.")
        sources.append(STDIN)
    for source in sources:
        where = STDIN_NAME if source == STDIN else source
        found = list(prompts_in(where, text_of(source), options.input_format))
        if not found:
            raise ConfigError(f"{where}: found no text; wanted a prompt.")
        prompts += found
    return prompts


def text_of(source: str) -> str:
    """The text of a file or of standard input, without the newline that ends its last line."""
    if source == STDIN:
        return decoded(STDIN_NAME, sys.stdin.buffer)
    try:
        with user_path(source).open("rb") as file:
            return decoded(source, file)
    except OSError as error:
        raise ConfigError(f"--file: {source!r} cannot be read: {error.strerror}. Check the path.") from None


def decoded(where: str, file: BinaryIO) -> str:
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{where}: found more than {MAX_BYTES >> 20} MiB. Split it.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start} is not UTF-8. Convert it first.") from None
    return text.replace("\r\n", "\n").removesuffix("\n")


def prompts_in(where: str, text: str, input_format: InputFormat) -> Iterator[Text]:
    """The prompts of one file."""
    if input_format is InputFormat.TEXT:
        if text:
            yield text
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield line if input_format is InputFormat.LINES else prompt_of_json(f"{where}, line {number}", line)


def prompt_of_json(where: str, line: str) -> Text:
    """The prompt of one line of JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: found no JSON; wanted {ONE_OF}.") from None
    if isinstance(value, dict):
        value = value.get("prompt", value.get("prompt_token_ids"))
    if isinstance(value, str) or (isinstance(value, list) and all(type(one) is int for one in value)):
        return value
    raise ConfigError(f"{where}: found {shown(value)}; wanted {ONE_OF}.")
