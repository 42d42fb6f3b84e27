"""What can be set about an engine. No torch: a command line makes its flags of this before anything heavy is imported.

A setting is one field of `EngineConfig`. Its check, its keywords, its flags and its help are made from its `Setting`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playhead.engine.foreign import FOREIGN_SETTINGS
from playhead.errors import ConfigError, did_you_mean, shown
from playhead.models.config import MAX_SIZE
from playhead.settings import Auto, Setting, Switch, check_settings, declare, parse_size, refused_setting, settings_of
from playhead.types import LoadFormat, Mode, TPMode

EMBEDDED = "embedded"
"""The name of the model that comes with the package."""
ModelName = str | os.PathLike[str]
"""The embedded model, a directory, a .gguf file or a hub id."""

DTYPES = ("float32", "bfloat16", "float16")
DTYPE_NAMES = {**{name: name for name in ("auto", *DTYPES)}, "half": "float16", "float": "float32"}
"""vLLM's names of dtypes, each with the name that torch has."""
GPU_SHARE = 0.9
"""The share of a GPU that an engine takes by default, as in vLLM."""
MAX_BYTES = 1 << 50
"""More than any machine has."""
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,2})?")


def device_name(name: str, value: object) -> str:
    """The name of a device as torch spells it; whether this machine has it is checked by `resolve_device`."""
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        raise refused_setting(name, value, "auto, cpu or cuda[:N]")
    return value


def dtype_name(name: str, value: object) -> str:
    """The name of a dtype as torch spells it. `torch.float16` itself is taken too, and torch need not be imported."""
    kind = type(value)
    if (kind.__module__, kind.__qualname__) == ("torch", "dtype"):
        value = str(value).removeprefix("torch.")
    if not isinstance(value, str) or value not in DTYPE_NAMES:
        raise refused_setting(name, value, f"one of {', '.join(DTYPE_NAMES)}, or a torch.dtype of these")
    return DTYPE_NAMES[value]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What can be set. What is left at None or "auto" follows from the model and the device.

    The largest sizes allowed here are far beyond any machine, and small enough that nothing overflows on the way to
    the check that knows this machine.

    >>> config = EngineConfig(max_model_len=64, max_num_seqs=2)
    >>> LLM("embedded", config).config.dtype
    'float32'
    >>> EngineConfig(max_num_seqs=0)
    Traceback (most recent call last):
    playhead.errors.ConfigError: max_num_seqs: found 0; wanted ...
    """

    device: str = declare(
        "auto", Setting(group="model", help="auto, cpu, cuda or cuda:N", metavar="NAME", take=device_name)
    )
    dtype: str = declare(
        "auto", Setting(group="model", help=f"auto, {', '.join(DTYPES)}", metavar="NAME", take=dtype_name)
    )
    load_format: LoadFormat = declare(
        LoadFormat.AUTO,
        Setting(group="model", help="auto, safetensors, gguf, or dummy: random weights", metavar="NAME"),
    )
    revision: str | None = declare(
        None, Setting(group="source", help="branch, tag or commit of a hub model", metavar="NAME")
    )
    tokenizer: str | None = declare(
        None,
        Setting(
            group="source",
            help="take the tokenizer from this directory, .gguf file or hub id",
            metavar="NAME",
            aliases=("--tokenizer-path",),
        ),
    )
    tokenizer_revision: str | None = declare(
        None, Setting(group="source", help="branch, tag or commit of the tokenizer", metavar="NAME")
    )
    """By default `revision`, where `tokenizer` is left out too."""
    chat_template: str | None = declare(
        None, Setting(group="source", help="a file with the chat template, in the place of the model's", metavar="FILE")
    )
    """Or the template itself: Jinja source."""
    generation_config: str = declare(
        "auto",
        Setting(
            group="source",
            help="requests without parameters: auto, as the model's authors say; vllm, as vLLM's defaults say",
            metavar="NAME",
            choices=("auto", "vllm"),
        ),
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
                "cuda": Auto(256, "a decode step reads all weights once for all requests: more are almost free"),
            },
        ),
    )
    max_num_batched_tokens: int | None = declare(
        None,
        Setting(
            group="schedule",
            help="tokens of a step",
            aliases=("--chunked-prefill-size",),
            low=1,
            high=1 << 20,
            auto={
                "cpu": Auto(512, "with more, decoding requests would wait for seconds"),
                "cuda": Auto(2048, "fills the GPU, and decoding requests wait for one step at most"),
            },
        ),
    )
    gpu_memory_utilization: float | None = declare(
        None,
        Setting(
            group="memory",
            help=f"share of a GPU to take in all [{GPU_SHARE}]",
            aliases=("--mem-fraction-static",),
            low=0,
            above=True,
            high=1,
        ),
    )
    """Weights, KV, graphs and activations together. On a CPU it means nothing."""
    kv_memory_bytes: int | None = declare(
        None,
        Setting(
            group="memory",
            help="memory for KV, like 4GiB",
            metavar="SIZE",
            aliases=("--kv-cache-memory-bytes",),
            parse=parse_size,
            low=1,
            high=MAX_BYTES,
        ),
    )
    page_size: int = declare(
        16, Setting(group="memory", help="tokens of a KV page", aliases=("--block-size",), low=1, high=1 << 12)
    )
    graph_mode: Mode | None = declare(
        None,
        Setting(
            group="graph",
            help=f"how prefill is captured: {', '.join(Mode)}",
            metavar="MODE",
            switches=(
                Switch(
                    flags=("--enforce-eager", "--disable-cuda-graph"),
                    sets=Mode.EAGER,
                    help="capture no graphs, not even of decode steps",
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
            help="keep the KV of prompts for later prompts with the same beginning",
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
            aliases=("--async-scheduling",),
            auto={
                "cpu": Auto(False, "launching a step computes it, so nothing could overlap"),
                "cuda": Auto(True, "the GPU works while the host plans"),
            },
        ),
    )
    forced_tokens: bool = declare(
        True, Setting(group="structured", help="compute in one step the tokens that a grammar forces")
    )
    batch_invariant: bool = declare(
        False,
        Setting(
            group="graph",
            help="the same tokens in any batch, on a GPU too",
        ),
    )
    """Every sum of a forward has an order that depends on the request's own tokens, so it comes out the same to the
    bit alone, batched, after a prefix hit and after a preemption, whatever the chunks. Without it a GPU's rounding
    depends on the number of rows of a step, and a near tie may be decided the other way. A CPU uses torch's matmuls,
    whose order is torch's own, with or without it."""
    tensor_parallel_size: int = declare(
        1,
        Setting(
            group="parallel",
            help="processes that share the model: a GPU each, or a core each of a CPU",
            aliases=("--tp", "--tp-size"),
            low=1,
            high=1 << 10,
        ),
    )
    tp_mode: TPMode = declare(
        TPMode.EXACT,
        Setting(
            group="parallel",
            help="exact: the tokens of one process; fast: half the messages, sums are rounded differently",
            metavar="MODE",
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
        check_settings(self, ENGINE_SETTINGS, refused_setting)


ENGINE_SETTINGS = settings_of(EngineConfig)


def config_from(config: EngineConfig | None, keywords: Mapping[str, Any]) -> EngineConfig:
    """The configuration given as an object or as keywords, not as both."""
    if config is not None and not isinstance(config, EngineConfig):
        raise ConfigError(f"config: found {shown(config)}; wanted an EngineConfig. Name settings, as in seed=7.")
    if config is not None and keywords:
        raise ConfigError(
            f"settings: found a config object and {', '.join(keywords)} beside it; wanted one of the two. "
            "Put them into the object."
        )
    return config or EngineConfig(**by_field(keywords))


def by_field(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the field's name. A keyword is that name or a long flag's: `context_length`, `enforce_eager`.

    A setting of another engine that Playhead has no use for is checked and dropped (`foreign.py`). None leaves any
    setting at its default: vLLM's own default of `enforce_eager` and of others is None.
    """
    values: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if keyword in FOREIGN_SETTINGS:
            FOREIGN_SETTINGS[keyword].check(keyword, value)
            continue
        if keyword not in SPELLINGS:
            names = ", ".join(declared.name for declared in ENGINE_SETTINGS)
            fix = did_you_mean(keyword, (*SPELLINGS, *FOREIGN_SETTINGS), "Remove it.")
            raise ConfigError(f"setting {keyword!r}: found no such setting; wanted one of {names}. {fix}")
        name, switch = SPELLINGS[keyword]
        if value is None:
            continue
        if name in values:
            raise ConfigError(f"{name}: found twice, once as {keyword}. Give it once.")
        if switch is None:
            values[name] = value
        elif not isinstance(value, bool):
            raise refused_setting(keyword, value, "True or False")
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
