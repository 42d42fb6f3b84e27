"""What can be set about an engine, and what unset values become on a device.

A setting is one field of `EngineConfig`. Its check, its keywords, its flags and its help are made from its `Setting`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from playhead.errors import ConfigError, shown
from playhead.graph.shapes import Mode
from playhead.kv.plan import KVLimits
from playhead.models.build import family_named
from playhead.models.config import MAX_SIZE
from playhead.models.decoder import Decoder
from playhead.models.load import LoadFormat, ModelDescription
from playhead.settings import Auto, Setting, Switch, check_settings, declare, parse_size, settings_of
from playhead.step.worker import WorkerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,2})?")


def device_name(name: str, value: object) -> str:
    """The name of a device as torch spells it; whether this machine has it is checked by `resolve_device`."""
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        raise refused(name, value, "auto, cpu or cuda[:N]")
    return value


def refused(name: str, value: object, wanted: str) -> ConfigError:
    """The error for one setting."""
    return ConfigError(f"{name}: found {shown(value)}; wanted {wanted}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What can be set. What is left at None or "auto" follows from the model and the device.

    The largest sizes allowed here are far beyond any machine, and small enough that nothing overflows on the way to
    the check that knows this machine.
    """

    device: str = declare(
        "auto", Setting(group="model", help="auto, cpu, cuda or cuda:N", metavar="NAME", take=device_name)
    )
    dtype: str = declare(
        "auto", Setting(group="model", help=f"auto, {', '.join(DTYPES)}", metavar="NAME", choices=("auto", *DTYPES))
    )
    load_format: LoadFormat = declare(
        LoadFormat.AUTO,
        Setting(group="model", help="auto, or dummy: random weights of the same shapes", metavar="NAME"),
    )
    seed: int | None = declare(
        None, Setting(group="seed", help="requests without a seed draw theirs from this", aliases=("--random-seed",))
    )
    """With None every run draws other seeds."""
    skip_tokenizer_init: bool = declare(
        False, Setting(group="text", help="prompts are token ids only, and no text comes back")
    )
    """A model of `load_format="dummy"` without a tokenizer is used so too."""
    max_model_len: int | None = declare(
        None,
        Setting(
            group="memory",
            help="longest context; the model's if left out",
            aliases=("--context-length",),
            low=1,
            high=MAX_SIZE,
        ),
    )
    # A GPU reads all weights for every decode step, whatever the batch: an H200 has about 200 operations of bfloat16
    # for each byte it reads, so some 200 requests ride along almost free, and 256 is the bucket above. 2,048 prompt
    # tokens fill its multiprocessors, and the requests that decode beside them wait for one such step at most. A CPU is
    # busy with a few rows, and 512 tokens of a small model already take a second. Both GPU sizes are vLLM's.
    max_num_seqs: int | None = declare(
        None,
        Setting(
            group="schedule",
            help="requests that run at once",
            aliases=("--max-running-requests",),
            low=1,
            high=1 << 16,
            auto={
                "cpu": Auto(16, "a CPU is busy with a few requests"),
                "cuda": Auto(256, "a decode step reads all weights: so many share the reading almost free"),
            },
        ),
    )
    max_num_batched_tokens: int | None = declare(
        None,
        Setting(
            group="schedule",
            help="prompt tokens of a step",
            aliases=("--chunked-prefill-size",),
            low=1,
            high=1 << 20,
            auto={
                "cpu": Auto(512, "with more, decoding requests would wait for seconds"),
                "cuda": Auto(2048, "fills the GPU, and decoding requests wait for one step at most"),
            },
        ),
    )
    kv_memory_bytes: int | None = declare(
        None,
        Setting(group="memory", help="memory for KV, like 4GiB", metavar="SIZE", parse=parse_size, low=1, high=1 << 50),
    )
    page_size: int = declare(
        16, Setting(group="memory", help="tokens of a KV page", aliases=("--block-size",), low=1, high=1 << 12)
    )
    graph_mode: Mode | None = declare(
        None,
        Setting(
            group="graph",
            help=f"of prefill: {', '.join(Mode)}",
            metavar="MODE",
            switches=(
                Switch(
                    flags=("--enforce-eager", "--disable-cuda-graph"),
                    sets=Mode.EAGER,
                    help="capture nothing, decode steps neither",
                ),
            ),
            # On a GPU every break costs the host a launch. On a CPU there is nothing to launch.
            auto={
                "cpu": Auto(Mode.BREAKABLE, "prefill's attention runs live: it finds its keys once for all layers"),
                "cuda": Auto(Mode.FULL, "prefill too: attention finds its requests on the GPU"),
            },
        ),
    )
    enable_prefix_caching: bool = declare(
        True,
        Setting(
            group="cache",
            help="keep the KV of prompts for requests that begin alike",
            switches=(
                Switch(
                    flags=("--no-enable-prefix-caching", "--disable-radix-cache"), sets=False, help="forget prompts"
                ),
            ),
        ),
    )
    overlap: bool | None = declare(
        None,
        Setting(
            group="overlap",
            help="launch a step before the last one is read",
            switches=(
                Switch(flags=("--disable-overlap-schedule",), sets=False, help="read each step before the next"),
            ),
            auto={
                "cpu": Auto(False, "a launch is the step, so the host has nothing to do meanwhile"),
                "cuda": Auto(True, "the GPU works while the host plans"),
            },
        ),
    )
    strict_ledger: bool | None = declare(
        None, Setting(group="ledger", help="recount all KV pages after every step and raise at the first violation")
    )
    """By default only where PLAYHEAD_STRICT_LEDGER is set. Otherwise the requests that touch the pages end, and all
    others go on."""
    ledger_audit_steps: int | None = declare(
        None, Setting(group="ledger", help="steps between two recounts of all KV pages", low=1, high=1 << 31)
    )
    """By default as often as costs 1% of the time, and when the engine is idle. Counts are compared after every step
    in any case."""

    def __post_init__(self) -> None:
        check_settings(self, ENGINE_SETTINGS, refused)


ENGINE_SETTINGS = settings_of(EngineConfig)


def config_from(config: EngineConfig | None, keywords: Mapping[str, Any]) -> EngineConfig:
    """The configuration given as an object or as keywords, not as both."""
    if config is not None and keywords:
        raise ConfigError(
            f"settings: found a config object and {', '.join(keywords)} beside it; wanted one of the two. "
            "Put them into the object."
        )
    return config or EngineConfig(**by_field(keywords))


def by_field(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the field's name. A keyword is that name or a long flag's: `context_length`, `enforce_eager`."""
    values: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if keyword not in SPELLINGS:
            names = ", ".join(declared.name for declared in ENGINE_SETTINGS)
            close = difflib.get_close_matches(keyword, SPELLINGS, n=1)
            fix = f"Did you mean {close[0]}?" if close else "Remove it."
            raise ConfigError(f"setting {keyword!r}: found no such setting; wanted one of {names}. {fix}")
        name, switch = SPELLINGS[keyword]
        if name in values:
            raise ConfigError(f"{name}: found it twice, once as {keyword}; wanted one spelling of it.")
        if switch is None:
            values[name] = value
        elif not isinstance(value, bool):
            raise refused(keyword, value, "True or False")
        elif value:
            values[name] = switch.sets
    return values


SPELLINGS: Mapping[str, tuple[str, Switch | None]] = {
    flag.removeprefix("--").replace("-", "_"): (declared.name, switch)
    for declared in ENGINE_SETTINGS
    for switch in (None, *declared.setting.switches)
    for flag in ((declared.name, *declared.setting.aliases) if switch is None else switch.flags)
}
"""Every keyword, with its field and the switch it stands for."""


def resolve_device(config: EngineConfig) -> torch.device:
    """The device asked for if this machine has it, or CUDA where there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= count:
        here = ("auto", "cpu", *(("cuda",) if count else ()), *(f"cuda:{i}" for i in range(count)))
        raise ConfigError(f"device: found {config.device!r}; this machine has {', '.join(here)}. Choose one of them.")
    return device


def resolve_dtype(
    config: EngineConfig, device: torch.device, description: ModelDescription | None = None
) -> torch.dtype:
    """The dtype asked for, or the checkpoint's own where the device is fast in it.

    On a CPU that is float32: half precision is far slower there. On a GPU a float16 checkpoint stays float16, unless
    its family overflows in it. Every other checkpoint runs in bfloat16, float32 ones too, as in vLLM: they take half
    the memory and time, and bfloat16 has float32's range. GPUs without bfloat16 run in float16.
    """
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if device.type != "cuda":
        return torch.float32
    if torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    if description is not None and description.stored_dtype is torch.float16:
        return torch.bfloat16 if family_named(description.spec.family).overflows_float16 else torch.float16
    return torch.bfloat16


def on_device(config: EngineConfig, device: torch.device) -> EngineConfig:
    """The configuration with the device's own value for every setting that was left open and has one."""
    open_ones = [one for one in ENGINE_SETTINGS if one.setting.auto and one.value_of(config) is None]
    return replace(config, **{one.name: one.setting.auto[device.type].value for one in open_ones})


def kv_limits(description: ModelDescription, config: EngineConfig, device: torch.device) -> KVLimits:
    """What the scheduler promises, with the model's own context where none was asked for."""
    longest = description.spec.max_context_tokens
    context = longest if config.max_model_len is None else config.max_model_len
    if not 1 <= context <= longest:
        raise ConfigError(f"max_model_len: found {context}; wanted 1 to {longest}, what the model has. Lower it.")
    usual = on_device(config, device)
    assert usual.max_num_seqs is not None, "every device has its sizes"
    assert usual.max_num_batched_tokens is not None, "every device has its sizes"
    return KVLimits(
        max_context_tokens=context,
        max_running=usual.max_num_seqs,
        chunk_tokens=usual.max_num_batched_tokens,
        num_steps_in_flight=2 if usual.overlap else 1,
    )


def resolved(config: EngineConfig, worker: WorkerConfig, decoder: Decoder) -> EngineConfig:
    """The configuration with every open value replaced by what a worker was made with."""
    return replace(
        config,
        device=str(decoder.embedding_VM.device),
        dtype=str(decoder.dtype).removeprefix("torch."),
        max_model_len=worker.limits.max_context_tokens,
        max_num_seqs=worker.limits.max_running,
        max_num_batched_tokens=worker.limits.chunk_tokens,
        kv_memory_bytes=worker.kv_memory_bytes,
        graph_mode=worker.token_mode,
        overlap=worker.limits.num_steps_in_flight > 1,
        strict_ledger=worker.strict_ledger,
    )
