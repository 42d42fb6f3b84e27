"""What can be set about a server. No torch: the command line makes its flags of this before anything heavy is imported.

A setting is one field of `ServeConfig`. Its check, its flag, its help and its key in a configuration file are made from
its `Setting`. A configuration file is TOML, with the settings of the server at the top and the engine's in a table:

    model = "google/gemma-3-1b-it"
    port = 8000
    api_key_file = "/etc/playhead/keys"

    [engine]
    max_model_len = 8192

    [limits]
    n = 4
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from playhead.engine.config import EMBEDDED, EngineConfig, by_field
from playhead.env import user_path
from playhead.errors import ConfigError, did_you_mean, shown
from playhead.request_limits import REQUEST_LIMITS, RequestLimits
from playhead.serve.tools import FORMAT_NAMES
from playhead.settings import Declared, Setting, check_settings, declare, parse_size, refused_setting, settings_of

ENGINE_TABLE = "engine"
LIMITS_TABLE = "limits"
MAX_CONFIG_BYTES = 1 << 20
BOUNDS = re.compile(r"(\d{1,4}):(\d{1,4})")


class Processes(StrEnum):
    """Where the engine runs."""

    AUTO = "auto"
    """In a process of its own on a GPU, beside the HTTP side on a CPU."""
    ONE = "one"
    TWO = "two"


class LogFormat(StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"
    """One object per line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """How a model is served: address, keys, limits, log.

    >>> ServeConfig(port=8080).host
    '127.0.0.1'
    >>> ServeConfig(max_body_bytes="1MiB").max_body_bytes
    1048576
    """

    model: str = declare(
        EMBEDDED, Setting(help=f"{EMBEDDED}, a directory, a .gguf file or a hub id", is_positional=True)
    )
    host: str = declare("127.0.0.1", Setting(help="address to listen on", metavar="ADDRESS"))
    port: int = declare(8000, Setting(help="port to listen on; 0 lets the system choose", low=0, high=65535))
    served_model_name: str | None = declare(
        None, Setting(help="what clients call the model; its own name if left out", metavar="NAME")
    )
    tool_format: str = declare(
        "auto",
        Setting(
            help="how the model writes tool calls; auto finds it in the chat template",
            metavar="NAME",
            choices=("auto", *FORMAT_NAMES),
        ),
    )
    api_key_file: str | None = declare(
        None, Setting(help="file with API keys, one per line, with or without 'name:' before it", metavar="PATH")
    )
    """Keys in the environment variable PLAYHEAD_API_KEYS are added to those of the file."""
    allow_anyone: bool = declare(
        False, Setting(help="serve without API keys on an address that other machines can reach")
    )
    processes: Processes = declare(
        Processes.AUTO,
        Setting(
            help="one: engine and HTTP share a process; two: each has its own; auto: two on a GPU",
            flag="--process",
            metavar="NAME",
        ),
    )
    replicas: int = declare(
        1, Setting(help="engines that serve the model, each in a process of its own", low=1, high=1024)
    )
    autoscale: str | None = declare(
        None, Setting(help="let the number of replicas follow the load, from MIN to MAX", metavar="MIN:MAX")
    )
    max_retries: int = declare(
        3, Setting(help="how often a request goes on with another replica when its own was lost", low=0, high=100)
    )
    ray: bool = declare(False, Setting(help="have Ray start the replicas, on this machine or on others"))
    ray_address: str | None = declare(
        None, Setting(help="a Ray cluster that runs; one of this machine is started if left out", metavar="ADDRESS")
    )
    ray_host: str = declare("127.0.0.1", Setting(help="private address that Ray and the replicas listen on"))
    drain_timeout: float = declare(
        30.0, Setting(help="seconds that running requests have to finish after SIGTERM", low=0, high=86400)
    )
    max_queued_requests: int | None = declare(
        None, Setting(help="sequences that wait in the queue; 4 for each that runs if left out", low=0, high=1 << 20)
    )
    queue_timeout: float = declare(
        60.0, Setting(help="seconds until the first token of a request", low=0, above=True, high=86400)
    )
    request_timeout: float = declare(
        600.0, Setting(help="seconds from the first token of a request to its last", low=0, above=True, high=86400)
    )
    max_body_bytes: int = declare(
        8 << 20,
        Setting(help="largest body of a request", metavar="SIZE", parse=parse_size, low=1, high=1 << 30),
    )
    body_timeout: float = declare(
        30.0, Setting(help="seconds that a client has to send a body", low=0, above=True, high=86400)
    )
    max_header_bytes: int = declare(
        64 << 10,
        Setting(help="largest headers of a request", metavar="SIZE", parse=parse_size, low=1024, high=1 << 24),
    )
    max_headers: int = declare(100, Setting(help="most headers of a request", low=1, high=10000))
    header_timeout: float = declare(
        10.0, Setting(help="seconds that a client has to send headers", low=0, above=True, high=86400)
    )
    max_connections: int = declare(1024, Setting(help="connections at once", low=1, high=1 << 20))
    keep_alive_timeout: float = declare(
        15.0, Setting(help="seconds that an idle connection stays open", low=0, above=True, high=86400)
    )
    send_timeout: float = declare(
        30.0, Setting(help="seconds after which a client that does not read is dropped", low=0, above=True, high=86400)
    )
    sse_comment_interval: float = declare(
        0.0, Setting(help="seconds between comments in a stream without events; 0 sends none", low=0, high=86400)
    )
    otel: bool = declare(False, Setting(help="export a span per request; OTEL_EXPORTER_OTLP_ENDPOINT says where"))
    log_format: LogFormat = declare(LogFormat.TEXT, Setting(help="text, or json: one object per line", metavar="NAME"))
    log_level: str = declare(
        "info",
        Setting(help="debug, info, warning or error", metavar="NAME", choices=("debug", "info", "warning", "error")),
    )

    limits: RequestLimits = field(default_factory=RequestLimits)
    """What one request may ask for. It has a table in the file, and no flags."""

    def __post_init__(self) -> None:
        check_settings(self, SERVE_SETTINGS, refused_setting)
        bounds = self.autoscale_bounds
        if bounds is not None and not bounds[0] <= self.replicas <= bounds[1]:
            found = f"{self.replicas} with autoscale {self.autoscale}"
            raise ConfigError(f"replicas: found {found}; wanted a number within it.")

    @property
    def has_replicas(self) -> bool:
        """Whether a fleet of engines serves, be it of one."""
        return self.ray or self.replicas > 1 or self.autoscale is not None

    @property
    def autoscale_bounds(self) -> tuple[int, int] | None:
        """The least and the greatest number of replicas, or None if the number stays."""
        if self.autoscale is None:
            return None
        found = BOUNDS.fullmatch(self.autoscale)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"autoscale: found {shown(self.autoscale)}; wanted MIN:MAX, such as 1:4.")
        return int(found[1]), int(found[2])


SERVE_SETTINGS = settings_of(ServeConfig)


def read_config(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a configuration file sets of the server and of the engine, or `ConfigError` that names the key."""
    try:
        text = user_path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"config: {path!r} cannot be read ({error.strerror}). Check the path.") from None
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"config: {path!r} has more than {MAX_CONFIG_BYTES} bytes; wanted a TOML file.")
    try:
        found = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: {path!r} is not TOML: {error}.") from None
    engine, limits = table_of(found, ENGINE_TABLE), table_of(found, LIMITS_TABLE)
    check_keys("config", found, SERVE_SETTINGS, f"Remove it, or put it into [{ENGINE_TABLE}].")
    check_keys(f"config, [{LIMITS_TABLE}]", limits, REQUEST_LIMITS, "Remove it.")
    if limits:
        found["limits"] = RequestLimits(**limits)
    return found, by_field(engine)


def table_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of a file, taken out of it. Empty where it is absent."""
    table = found.pop(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"config: found {name} = {shown(table)}; wanted a table, [{name}].")
    return table


def check_keys(where: str, found: Mapping[str, Any], settings: Sequence[Declared], otherwise: str) -> None:
    """`ConfigError` for the first key that is no setting."""
    known = [declared.name for declared in settings]
    for key in found:
        if key not in known:
            fix = did_you_mean(key, known, otherwise)
            raise ConfigError(f"{where}: found {key!r}; wanted one of {', '.join(known)}. {fix}")


def merged(
    path: str | None, asked: Mapping[str, Any], asked_of_engine: Mapping[str, Any]
) -> tuple[ServeConfig, EngineConfig]:
    """The settings of a file with those of the command line, which win."""
    of_server, of_engine = ({}, {}) if path is None else read_config(path)
    return ServeConfig(**{**of_server, **asked}), EngineConfig(**{**of_engine, **asked_of_engine})
