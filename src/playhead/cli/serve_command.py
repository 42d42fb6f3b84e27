"""`playhead serve` as a command: its flags, and the file that may stand behind them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from playhead.cli.command import ENGINE_PANEL, command, flags_of, of_file
from playhead.engine.config import ENGINE_SETTINGS
from playhead.errors import ConfigError
from playhead.serve.config import SERVE_SETTINGS, merged
from playhead.settings import Setting, declare

SERVED_GROUPS = ("model", "source", "memory", "schedule", "graph", "cache", "overlap", "seed", "ledger")
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
    try:
        from playhead.cli.serve import run_serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in SERVE_PACKAGES:
            raise
        raise ConfigError(
            f"playhead serve needs {error.name}, which is not installed. Install playhead[serve]."
        ) from None
    from playhead.cli.screen import Screen

    raise typer.Exit(run_serve(Screen(), config, engine_config))
