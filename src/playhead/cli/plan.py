"""`playhead plan`: what a model takes and how much context fits, before anything is loaded."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, replace

import torch
from rich.console import Console
from rich.table import Table

from playhead.cli.command import MODEL, command, engine, flags_of
from playhead.engine.build import resolve_model_name
from playhead.engine.config import EngineConfig
from playhead.engine.memory import fit_beside_weights, share_of_gpu
from playhead.engine.resolve import resolve_dtype
from playhead.errors import ConfigError
from playhead.kv.plan import KVPlan, plan_kv
from playhead.models.load import ModelDescription, describe_model
from playhead.settings import Setting, declare, parse_size, show_size
from playhead.step.forward import kv_geometry

USUAL_CONTEXTS = (8192, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Which model, and on how much memory."""

    model: str = declare(MISSING, replace(MODEL, is_positional=True))
    gpu_memory: int | None = declare(
        None, Setting(help="like 139GiB; this machine's if left out", metavar="SIZE", parse=parse_size)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Where a device's memory goes."""

    device_bytes: int
    weight_bytes: int
    kv: KVPlan
    notes: tuple[str, ...] = ()

    @property
    def rest_bytes(self) -> int:
        return self.device_bytes - self.weight_bytes - self.kv.arena_bytes


@command(flags_of(PlanOptions), engine("dtype", "memory", "schedule"))
def plan(options: PlanOptions, config: EngineConfig) -> None:
    """Show what MODEL takes on a GPU and what fits. Reads no weights."""
    device_bytes = this_gpu_bytes() if options.gpu_memory is None else options.gpu_memory
    description = describe_model(resolve_model_name(options.model), config_only=True)
    made = plan_memory(description, config, device_bytes)
    console = Console()
    console.print(memory_table(options.model, made))
    console.print(capacity_table(made.kv))
    for note in made.notes:
        console.print(note, markup=False, highlight=False)


def this_gpu_bytes() -> int:
    if not torch.cuda.is_available():
        raise ConfigError("gpu-memory: found no GPU here; wanted its size. Say it, as in --gpu-memory 80GB.")
    return torch.cuda.get_device_properties(0).total_memory


def plan_memory(description: ModelDescription, config: EngineConfig, device_bytes: int) -> MemoryPlan:
    """The same sizes the engine would choose on a device of this size, or the `ConfigError` it would raise."""
    device = torch.device("cuda")
    dtype = resolve_dtype(config, device, description)
    memory = fit_beside_weights(description, config, device, share_of_gpu(config, device_bytes, device_bytes))
    geometry = kv_geometry(description.spec, page_size=config.page_size, dtype=dtype)
    return MemoryPlan(
        device_bytes=device_bytes,
        weight_bytes=memory.weight_bytes,
        kv=plan_kv(num_bytes=memory.kv_memory_bytes, geometry=geometry, limits=memory.limits),
        notes=memory.notes,
    )


def memory_table(model: str, made: MemoryPlan) -> Table:
    """What weights, KV and the rest take of the device's memory."""
    table = Table("memory", "size", "share", "what", title=f"{model} on {show_size(made.device_bytes)}")
    kv = made.kv
    slabs = f"{kv.num_slabs:,} slabs of {show_size(kv.layout.slab_bytes)}"
    rows = [("weights", made.weight_bytes, ""), ("KV arena", kv.arena_bytes, slabs)]
    rows.append(("left", made.rest_bytes, "graphs, activations, the CUDA context"))
    for name, num_bytes, what in rows:
        table.add_row(name, show_size(num_bytes), f"{num_bytes / made.device_bytes:.1%}", what)
    for layout in kv.layout.groups:
        group = layout.group
        if layout.has_bytes:
            kept = "every token" if group.window is None else f"the last {group.window:,} tokens"
            what = f"{len(group.layers)} layers keep {kept}"
            table.add_row(f"  {group.name}", f"{group.bytes_per_token:,} B/token", "", what)
    return table


def capacity_table(kv: KVPlan) -> Table:
    """What fits at the maximum context, and at usual ones the model allows."""
    most = kv.limits.max_context_tokens
    contexts = sorted({most, *(context for context in USUAL_CONTEXTS if context <= most)})
    table = Table("context", "requests", "at once", "tokens", "of hybrid bound", "vs uniform", title="what fits")
    for context in contexts:
        fits = kv.capacity(context)
        table.add_row(
            f"{context:,}",
            f"{fits.num_requests:,}",
            f"{min(fits.num_requests, kv.limits.max_running):,}",
            f"{fits.num_tokens:,}",
            f"{fits.fraction_of_bound:.1%}",
            f"{fits.times_uniform:.2f}x",
        )
    return table
