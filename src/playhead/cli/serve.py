"""`playhead serve`: the plan, the model, the address, and then requests until a signal comes."""

from __future__ import annotations

import sys
import time

from playhead.cli.plan import capacity_table, memory_table, plan_memory, planned_memory
from playhead.cli.screen import Screen
from playhead.engine.config import EngineConfig
from playhead.logs import LEVELS, write_to_stderr
from playhead.serve.assemble import make_application
from playhead.serve.auth import check_exposure, load_keys
from playhead.serve.backend import Backend
from playhead.serve.choose import backend_for
from playhead.serve.config import LogFormat, ServeConfig
from playhead.serve.limits import ServeLimits
from playhead.serve.run import Server, bind, run, url_of


def run_serve(screen: Screen, config: ServeConfig, engine: EngineConfig) -> int:
    """Serve until a signal ends it. What is wrong with the settings is said before a model is loaded."""
    write_to_stderr(LEVELS[config.log_level], as_json=config.log_format is LogFormat.JSON)
    keys = load_keys(config.api_key_file)
    check_exposure(config.host, keys, allows_anyone=config.allow_anyone)
    sock = bind(config)
    show_plan(screen, config, engine)
    backend = make_backend(config, engine)
    began_s = time.perf_counter()

    def ready(server: Server) -> None:
        screen.print(
            f"{backend.facts.name} is served on {url_of(sock)} after {time.perf_counter() - began_s:.1f} s. "
            f"{len(keys) or 'No'} API {'key' if len(keys) == 1 else 'keys'}. Ctrl-C ends.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        sys.stdout.flush()

    screen.print(f"loading {config.model}", highlight=False, markup=False, soft_wrap=True)
    return run(make_application(backend, keys, config), sock, ready)


def show_plan(screen: Screen, config: ServeConfig, engine: EngineConfig) -> None:
    """Where the memory goes, before anything is loaded."""
    made = plan_memory(config.model, engine, planned_memory(None))
    for table in (memory_table(made), capacity_table(made)):
        screen.print(table)


def make_backend(config: ServeConfig, engine: EngineConfig) -> Backend:
    """The engine that serves: beside the HTTP side, or in a process of its own."""
    limits = ServeLimits(
        max_queued=config.max_queued_requests,
        max_waiting_s=config.queue_timeout,
        max_running_s=config.request_timeout,
    )
    return backend_for(config.model, engine, limits, processes=config.processes, name=config.served_model_name)
