"""`playhead serve` as a command: its flags, and the file that may stand behind them. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer

from playhead.cli.command import ENGINE_PANEL, command, flags_of, of_file
from playhead.engine.config import ENGINE_SETTINGS, EngineConfig
from playhead.errors import ConfigError
from playhead.logs import LEVELS, write_to_stderr
from playhead.serve.config import SERVE_SETTINGS, LogFormat, ServeConfig, merged
from playhead.serve.engine_child import EngineChild, has_own_process, start_child
from playhead.settings import Setting, declare

SERVED_GROUPS = ("model", "source", "memory", "schedule", "graph", "cache", "overlap", "parallel", "seed", "ledger")
SERVE_PACKAGES = ("litestar", "msgspec", "uvicorn", "uvloop", "httptools", "prometheus_client", "llguidance")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Where the other settings of a server may stand."""

    config: str | None = declare(
        None, Setting(help="read settings from this TOML file; flags win over it", metavar="FILE")
    )


@command(
    flags_of(ServeOptions),
    of_file(SERVE_SETTINGS),
    of_file(ENGINE_SETTINGS, *SERVED_GROUPS, panel=ENGINE_PANEL),
)
def serve(options: ServeOptions, asked: Mapping[str, Any], asked_of_engine: Mapping[str, Any]) -> None:
    """Serve a model over HTTP as OpenAI's API. SIGTERM ends the server when its requests are done."""
    config, engine_config = merged(options.config, asked, asked_of_engine)
    write_to_stderr(LEVELS[config.log_level], as_json=config.log_format is LogFormat.JSON)
    with engine_child(config, engine_config) as child:
        raise typer.Exit(serve_with(child, config, engine_config))


@contextmanager
def engine_child(config: ServeConfig, engine_config: EngineConfig) -> Iterator[EngineChild | None]:
    """The engine's process, if it has one of its own. It imports torch while this process imports what HTTP needs."""
    has_child = not config.has_replicas and has_own_process(config.processes, engine_config)
    child = start_child(engine_config) if has_child else None
    try:
        yield child
    finally:
        if child is not None:
            child.discard()


def serve_with(child: EngineChild | None, config: ServeConfig, engine_config: EngineConfig) -> int:
    """Import the packages of a server, and serve."""
    try:
        from playhead.cli.serve import run_serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in SERVE_PACKAGES:
            raise
        raise ConfigError(
            f"playhead serve needs {error.name}, which is not installed. Install playhead[serve]."
        ) from None
    from playhead.cli.screen import Screen

    return run_serve(Screen(), config, engine_config, child)
