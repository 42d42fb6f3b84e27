"""A tokenizer from a model's files. No torch: a server reads prompts in a process without it."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from playhead.engine.config import EMBEDDED, EngineConfig, ModelName
from playhead.env import user_path
from playhead.errors import ConfigError, shown
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.hub import HUB_PREFIX, resolve_model
from playhead.models.text.generation_config import read_generation_config
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.models.text.tokenizer import Tokenizer, template_file, tokenizer_from_directory
from playhead.types import LoadFormat


def tokenizer_at(path: Path, config: EngineConfig, gguf: GgufFile | None = None) -> Tokenizer:
    """From a directory or a GGUF file, which may be open already, with the chat template that is asked for."""
    tokenizer = _from_files(path, config, gguf)
    if config.chat_template is not None and tokenizer.has_text:
        tokenizer.chat_template, tokenizer.tool_template = template_source(config.chat_template), None
        tokenizer.chat_stops = ()
    return tokenizer


def template_source(given: str) -> str:
    """The chat template in the file of this name; a text with Jinja's marks is one itself."""
    if "{{" in given or "{%" in given:
        return given
    path = user_path(given)
    if not path.is_file():
        raise ConfigError(
            f"chat_template: found no file {shown(given)}; wanted one, or Jinja source. Correct the path."
        )
    return template_file(path)


def _from_files(path: Path, config: EngineConfig, gguf: GgufFile | None) -> Tokenizer:
    """Ids only where the configuration has no text."""
    if path.is_file():
        file = gguf or GgufFile(path)
        return IdsOnlyTokenizer() if config.skip_tokenizer_init else tokenizer_from_gguf(file.metadata)
    is_dummy = config.load_format is LoadFormat.DUMMY and config.tokenizer is None
    if config.skip_tokenizer_init or (is_dummy and not (path / "tokenizer.json").is_file()):
        return IdsOnlyTokenizer(read_generation_config(path).eos_ids)
    return tokenizer_from_directory(path)


def resolve_model_name(model: ModelName, *, where: str = "model") -> str:
    """The embedded model's directory for its name; any other name or path as text. `ConfigError` for neither."""
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else ""
    if not name:  # as a path it would be the working directory
        raise ConfigError(f"{where}: found {shown(model)}; wanted {EMBEDDED!r}, a directory, a .gguf file or a hub id.")
    return str(files("playhead") / "assets" / "embedded") if name == EMBEDDED else name


def tokenizer_path(model_path: Path, config: EngineConfig) -> Path:
    """Where the tokenizer's files are: with the model's, or where `EngineConfig.tokenizer` says."""
    if config.tokenizer is None or config.skip_tokenizer_init:
        return model_path
    return resolve_model(resolve_model_name(config.tokenizer, where="tokenizer"), revision=config.tokenizer_revision)


def tokenizer_path_here(model: str, config: EngineConfig) -> Path | None:
    """Where the tokenizer's files of a model are, if they are on this machine and not in the hub's cache."""
    where, name = "tokenizer", config.tokenizer
    if name is None or config.skip_tokenizer_init:
        where, name = "model", model
    path = user_path(resolve_model_name(name, where=where))
    return path if path.exists() and not name.startswith(HUB_PREFIX) else None
