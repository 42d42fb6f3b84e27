"""`playhead serve`: the plan, the model, the address, and then requests until a signal comes. No torch at import."""

from __future__ import annotations

import sys
import time

from rich.table import Table

from playhead.cli.screen import Screen
from playhead.engine.config import EngineConfig
from playhead.engine.snapshot import EngineSnapshot
from playhead.scale.build import replicated_backend
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve.assemble import make_application
from playhead.serve.auth import check_exposure, load_keys
from playhead.serve.backend import Backend
from playhead.serve.choose import backend_for, limits_of
from playhead.serve.config import ServeConfig
from playhead.serve.engine_child import EngineChild
from playhead.serve.remote import RemoteBackend
from playhead.serve.run import bind, run, url_of
from playhead.settings import show_size


def run_serve(screen: Screen, config: ServeConfig, engine: EngineConfig, child: EngineChild | None) -> int:
    """Serve until a signal ends it. What is wrong with the settings is said before a model is loaded.

    `child` is the engine's process, if it has one of its own.
    """
    keys = load_keys(config.api_key_file)
    check_exposure(config.host, keys, allows_anyone=config.allow_anyone)
    backend = make_backend(config, engine)
    sock = bind(config)
    is_elsewhere = isinstance(backend, RemoteBackend | ReplicatedBackend)
    if not is_elsewhere:
        show_plan(screen, config, engine)
    elif child is not None and isinstance(backend, RemoteBackend):
        backend.adopt(child)
    began_s = time.perf_counter()

    async def ready() -> None:
        if is_elsewhere:
            screen.print(kv_table(await backend.snapshot()))
        say(
            screen,
            f"{backend.facts.name} is served on {url_of(sock)} after {time.perf_counter() - began_s:.1f} s. "
            f"{len(keys) or 'No'} API {'key' if len(keys) == 1 else 'keys'}. Ctrl-C ends.",
        )

    where = f" in {config.replicas} replicas" if config.has_replicas else " in a process of its own"
    say(screen, f"loading {config.model}{where if is_elsewhere else ''}")
    return run(make_application(backend, keys, config), sock, ready)


def say(screen: Screen, line: str) -> None:
    """One line, at once: whoever waits for the address may read a pipe."""
    screen.print(line, highlight=False, markup=False, soft_wrap=True)
    sys.stdout.flush()


def show_plan(screen: Screen, config: ServeConfig, engine: EngineConfig) -> None:
    """Where the memory goes, before anything is loaded."""
    # Here and not at the top: where the engine has a process of its own, this one does without torch.
    from playhead.cli.plan import capacity_table, memory_table, plan_memory, planned_memory

    made = plan_memory(config.model, engine, planned_memory(None))
    for table in (memory_table(made), capacity_table(made)):
        screen.print(table)


def kv_table(snapshot: EngineSnapshot) -> Table:
    """Where the KV memory of an engine in another process can go. Groups share slabs, so they do not add up."""
    total = show_size(snapshot.num_slabs * snapshot.slab_bytes)
    table = Table("group", "window", "a page", title=f"KV memory: {total}, {snapshot.num_slabs:,} slabs")
    for group in snapshot.groups:
        window = "every token" if group.window is None else f"the last {group.window:,} tokens"
        table.add_row(group.name, window, f"{group.page_size} tokens, {show_size(group.bytes_per_page)}")
    return table


def make_backend(config: ServeConfig, engine: EngineConfig) -> Backend:
    """The engine that serves: beside the HTTP side, in a process of its own, or several of those."""
    if config.has_replicas:
        return replicated_backend(config, engine)
    limits, name = limits_of(config), config.served_model_name
    return backend_for(config.model, engine, limits, processes=config.processes, name=name)
