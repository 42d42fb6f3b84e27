"""What a model takes of memory and how much context fits, before anything is loaded: half of `playhead plan`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.table import Table

from playhead.cli.command import in_flags
from playhead.cli.screen import Screen
from playhead.engine.build import load_tokenizer
from playhead.engine.config import ENGINE_SETTINGS, EngineConfig
from playhead.engine.host_memory import free_host_bytes
from playhead.engine.memory import fit_beside_weights, share_of_gpu
from playhead.engine.resolve import resolve_dtype
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.errors import PlayheadError
from playhead.kv.plan import NUM_SINK_SLABS, Capacity, KVPlan, plan_kv
from playhead.models.facts import load_facts
from playhead.models.load import ModelDescription, describe_model
from playhead.settings import show_size
from playhead.step.forward import kv_geometry

USUAL_CONTEXTS = (8192, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that is planned for: a device of this kind with so much of it, in words."""

    device: torch.device
    num_bytes: int
    name: str
    rest_is_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Where the memory goes: `weight_bytes`, the KV arena's and `rest_bytes` are all of it."""

    model: str
    memory: Memory
    dtype: str
    weight_bytes: int
    kv: KVPlan
    tokenizer: str
    notes: tuple[str, ...] = ()

    @property
    def rest_bytes(self) -> int:
        return self.memory.num_bytes - self.weight_bytes - self.kv.arena_bytes

    @property
    def capacities(self) -> list[Capacity]:
        """What fits at the maximum context, and at usual ones the model allows."""
        most = self.kv.limits.max_context_tokens
        return [self.kv.capacity(one) for one in sorted({most, *(one for one in USUAL_CONTEXTS if one <= most)})]


def show_memory(screen: Screen, made: MemoryPlan) -> None:
    """A plan as tables."""
    for table in (memory_table(made), capacity_table(made), arena_table(made)):
        screen.print(table)
    no_gpu = ["There is no GPU here: the plan is for the CPU. --gpu-memory 24GiB plans for a GPU."]
    notes = [*(no_gpu if made.memory.device.type == "cpu" else ()), f"tokenizer: {made.tokenizer}", *made.notes]
    for note in notes:
        screen.print(in_flags(note, ENGINE_SETTINGS), markup=False, highlight=False)


def gpu_memory(num_bytes: int, name: str) -> Memory:
    """A GPU's."""
    rest_is_for = "graphs, activations, the CUDA context"
    return Memory(device=torch.device("cuda"), num_bytes=num_bytes, name=name, rest_is_for=rest_is_for)


def planned_memory(gpu_bytes: int | None) -> Memory:
    """A GPU of the size that was asked for, this machine's GPU, or its free memory where it has none."""
    if gpu_bytes is not None:
        return gpu_memory(gpu_bytes, f"a GPU with {show_size(gpu_bytes)}")
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        return gpu_memory(gpu.total_memory, f"{gpu.name} with {show_size(gpu.total_memory)}")
    device = torch.device("cpu")
    free = free_host_bytes()
    name = f"this machine's CPU, {show_size(free)} free"
    return Memory(device=device, num_bytes=free, name=name, rest_is_for="graphs, activations, other programs")


def plan_memory(model: str, config: EngineConfig, memory: Memory) -> MemoryPlan:
    """The same sizes the engine would choose in this memory, or the `ConfigError` it would raise."""
    description = describe_model(resolve_model_name(model), config_only=True)
    dtype = resolve_dtype(config, memory.device, description)
    total = memory.num_bytes
    free = share_of_gpu(config, total, total) if memory.device.type == "cuda" else total
    fitting = fit_beside_weights(description, config, memory.device, free)
    geometry = kv_geometry(description.spec, page_size=config.page_size, dtype=dtype)
    return MemoryPlan(
        model=model,
        memory=memory,
        dtype=str(dtype).removeprefix("torch."),
        weight_bytes=fitting.weight_bytes,
        kv=plan_kv(num_bytes=fitting.kv_memory_bytes, geometry=geometry, limits=fitting.limits),
        tokenizer=tokenizer_state(description, config),
        notes=(*load_facts(description, dtype), *fitting.notes),
    )


def tokenizer_state(description: ModelDescription, config: EngineConfig) -> str:
    """Whether the model's text can be read, known before its weights are."""
    if description.gguf is None and not (description.path / "tokenizer.json").is_file():
        return "not checked: beside config.json there is no tokenizer.json."
    try:
        tokenizer = load_tokenizer(description, config)
    except PlayheadError as error:
        return f"the model could not be used. {' '.join(str(error).split())}"
    return "it can be read, with a chat template." if tokenizer.chat_template else "it can be read, no chat template."


def memory_table(made: MemoryPlan) -> Table:
    """What weights, KV and the rest take; together they are the memory."""
    table = Table("memory", "size", "share", "what", title=f"{made.model} on {made.memory.name}")
    total, slab_bytes = made.memory.num_bytes, made.kv.layout.slab_bytes
    for name, num_bytes, what in (
        ("weights", made.weight_bytes, made.dtype),
        ("KV arena", made.kv.arena_bytes, f"{made.kv.num_slabs:,} slabs of {show_size(slab_bytes)}"),
        ("left", made.rest_bytes, made.memory.rest_is_for),
        ("together", total, ""),
    ):
        table.add_row(name, show_size(num_bytes), f"{num_bytes / total:.1%}", what)
    return table


def capacity_table(made: MemoryPlan) -> Table:
    """requests x context + one more = tokens."""
    columns = ("context", "requests", "one more of", "tokens", "at once", "of hybrid bound", "vs uniform")
    table = Table(*columns, title="what fits: requests x context + one more = tokens")
    for fits in made.capacities:
        table.add_row(
            f"{fits.context_tokens:,}",
            f"{fits.num_requests:,}",
            f"{fits.one_more_tokens:,}",
            f"{fits.num_tokens:,}",
            f"{min(fits.num_requests, made.kv.limits.max_running):,}",
            f"{fits.fraction_of_bound:.1%}",
            f"{fits.times_uniform:.2f}x",
        )
    return table


def arena_table(made: MemoryPlan) -> Table:
    """Where the arena's slabs go when it is full of requests of the longest context."""
    fits = made.kv.capacity(made.kv.limits.max_context_tokens)
    requests = f"{fits.num_requests:,} {'request' if fits.num_requests == 1 else 'requests'}"
    table = Table("group", "slabs", "size", "what", title=f"the KV arena with {requests} of {fits.context_tokens:,}")
    for name, num_slabs, what in arena_rows(made.kv, fits):
        table.add_row(name, f"{num_slabs:,}", show_size(num_slabs * made.kv.layout.slab_bytes), what)
    return table


def arena_rows(kv: KVPlan, fits: Capacity) -> Iterator[tuple[str, int, str]]:
    """(group, slabs, what they hold); the last row is the sum."""
    slabs = kv.slabs_of(fits.num_requests, fits.context_tokens)
    for layout, num_slabs in zip(kv.layout.groups, slabs, strict=True):
        group = layout.group
        if layout.has_bytes:
            kept = "every token" if group.window is None else f"the last {group.window:,} tokens and steps in flight"
            layers = "1 layer keeps" if len(group.layers) == 1 else f"{len(group.layers)} layers keep"
            yield group.name, num_slabs, f"{layers} {kept}, {group.bytes_per_token:,} B each"
    yield "sink", NUM_SINK_SLABS, "padded rows write there"
    rest = kv.num_slabs - sum(slabs) - NUM_SINK_SLABS
    yield "free", rest, f"one more request of {fits.one_more_tokens:,} tokens" if fits.one_more_tokens else ""
    yield "together", kv.num_slabs, ""


def as_record(made: MemoryPlan) -> dict[str, object]:
    """The plan with every number that the tables show."""
    kv = made.kv
    at_most = kv.capacity(kv.limits.max_context_tokens)
    return {
        "model": made.model,
        "device": made.memory.device.type,
        "dtype": made.dtype,
        "memory_bytes": made.memory.num_bytes,
        "weight_bytes": made.weight_bytes,
        "kv_bytes": kv.arena_bytes,
        "rest_bytes": made.rest_bytes,
        "slab_bytes": kv.layout.slab_bytes,
        "slabs": {name: num_slabs for name, num_slabs, _ in arena_rows(kv, at_most)},
        "max_model_len": kv.limits.max_context_tokens,
        "max_num_seqs": kv.limits.max_running,
        "max_num_batched_tokens": kv.limits.chunk_tokens,
        "fits": [
            {
                "context_tokens": fits.context_tokens,
                "num_requests": fits.num_requests,
                "one_more_tokens": fits.one_more_tokens,
                "num_tokens": fits.num_tokens,
                "fraction_of_bound": fits.fraction_of_bound,
                "times_uniform": fits.times_uniform,
            }
            for fits in made.capacities
        ],
        "tokenizer": made.tokenizer,
        "notes": list(made.notes),
    }
