"""`playhead doctor`: the machine, the versions, what Playhead would choose here and why, and what to look out for.

With a model: what is wrong with its files.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

import torch
from rich.table import Table

from playhead import __version__
from playhead.cli.screen import Screen
from playhead.engine.config import ENGINE_SETTINGS, GPU_SHARE, EngineConfig
from playhead.engine.memory import CPU_KV_BYTES, CPU_SHARE_OF_FREE, KV_SHARE
from playhead.engine.resolve import resolve_device, resolve_dtype
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.models.checkpoint.hub import resolve_model
from playhead.models.checkup import Checkup
from playhead.settings import show_size

DEFAULTS = EngineConfig()
OTHER_DEFAULTS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "cuda": (
        ("device", "cuda", "a CUDA device is here"),
        ("dtype", "", "float16 where the checkpoint is; else half the bytes of float32, and its range"),
        ("attention", "TritonBackend", "compiled for this GPU, reads pages and windows directly"),
        ("graphs", "CudaBackend", "CUDA graphs: a step is one launch"),
        (
            "kv_memory_bytes",
            f"{KV_SHARE:.0%} of {GPU_SHARE:.0%} of the GPU, less the weights",
            "the rest is for graphs and activations",
        ),
    ),
    "cpu": (
        ("device", "cpu", "no CUDA device is here"),
        ("dtype", "", "half precision is far slower on a CPU"),
        ("attention", "CpuBackend", "torch and numpy; the Triton kernels need a GPU"),
        ("graphs", "TapeBackend", "replays recorded operations under the rules of CUDA graphs"),
        (
            "kv_memory_bytes",
            show_size(CPU_KV_BYTES),
            f"up to {CPU_SHARE_OF_FREE:.0%} of free memory for a long context",
        ),
    ),
}
"""(name, value, why) of defaults that are no constants of a setting; the dtype is filled in."""
PACKAGES = ("torch", "triton", "tokenizers", "gguf", "huggingface_hub")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the findings depend on."""

    cuda_build: str | None
    gpus: tuple[str, ...]
    environment: Mapping[str, str]


def run_doctor(screen: Screen, model: str | None) -> int:
    """Show the machine, or what is wrong with a model. The exit code is 1 if something is."""
    if model is not None:
        return show_checkup(screen, model)
    machine = this_machine()
    for title, rows in (
        ("Machine", machine_rows(machine)),
        ("Versions", version_rows()),
        ("Defaults here", default_rows(resolve_device(DEFAULTS))),
        ("Traps", traps(machine) or [("none", "no known problem")]),
    ):
        table = Table.grid(padding=(0, 2))
        for row in rows:
            table.add_row(*row)
        screen.print(title, style="bold")
        screen.print(table)
    return 0


def show_checkup(screen: Screen, model: str) -> int:
    """Print every problem of a checkpoint. The exit status is 0 if there is none."""
    checkup = Checkup(resolve_model(resolve_model_name(model)))
    problems = checkup.run()
    for problem in problems:
        screen.out(f"  {problem}", highlight=False)
    verdict = f"{len(problems)} problems" if problems else f"nothing wrong found; {checkup.num_tensors} tensors"
    screen.out(f"{model}: {verdict}", highlight=False, style="bold")
    return 1 if problems else 0


def this_machine() -> Machine:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(i) for i in range(count)]
    return Machine(
        cuda_build=torch.version.cuda,
        gpus=tuple(f"{gpu.name}, {show_size(gpu.total_memory)}, sm_{gpu.major}{gpu.minor}" for gpu in properties),
        environment=dict(os.environ),
    )


def machine_rows(machine: Machine) -> list[tuple[str, ...]]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = [(f"  GPU {i}", gpu) for i, gpu in enumerate(machine.gpus)] or [("  GPU", "none")]
    return [
        ("  system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("  CPU", f"{cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads for torch"),
        ("  memory", show_size(memory_bytes)),
        *gpus,
    ]


def cpu_name() -> str:
    """The model name Linux knows, or whatever Python says."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def version_rows() -> list[tuple[str, ...]]:
    return [
        ("  playhead", __version__),
        ("  python", platform.python_version()),
        *((f"  {name}", installed_version(name)) for name in PACKAGES),
    ]


def installed_version(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return "not installed"


def default_rows(device: torch.device) -> list[tuple[str, ...]]:
    """What a worker takes on this device, with the reason. The engine's settings have theirs in `EngineConfig`."""
    dtype = str(resolve_dtype(DEFAULTS, device)).removeprefix("torch.")
    rows = [(name, dtype if name == "dtype" else value, why) for name, value, why in OTHER_DEFAULTS[device.type]]
    autos = [(one.name, one.setting.auto[device.type]) for one in ENGINE_SETTINGS if one.setting.auto]
    rows += [
        (name, f"{auto.value:,}" if type(auto.value) is int else str(auto.value), auto.why) for name, auto in autos
    ]
    return [(f"  {name}", value, why) for name, value, why in rows]


def traps(machine: Machine) -> list[tuple[str, ...]]:
    """What is known to go wrong on such a machine: what is the case, and what it means."""
    found: list[tuple[str, ...]] = []
    if machine.cuda_build is None:
        found.append(("  torch without CUDA", f"{torch.__version__} sees no GPU, even if there is one"))
    if not machine.gpus:
        found.append(("  no CUDA device", "models run on the CPU: right tokens, few per second"))
        found.append(("  half precision", "--dtype bfloat16 or float16 is slow on a CPU; leave it at auto"))
    if machine.environment.get("TRITON_INTERPRET", "0") not in ("", "0"):
        found.append(("  TRITON_INTERPRET", "is set: kernels run in Python, thousands of times slower. Unset it"))
    return found
