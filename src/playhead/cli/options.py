"""Options that several commands have, and what they become.

Where vLLM and SGLang call a setting differently, both names work: a command line copied from either runs here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import torch
import typer

from playhead.engine.config import CPU_SIZES, CUDA_SIZES, EngineConfig
from playhead.errors import ConfigError
from playhead.graph.shapes import Mode
from playhead.llm import EMBEDDED
from playhead.models.load import LoadFormat

ENGINE_PANEL = "Engine (vLLM's and SGLang's names both work)"
DEFAULTS = EngineConfig()
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


class GraphMode(StrEnum):
    """How steps over tokens are captured."""

    FULL = "full"
    BREAKABLE = "breakable"
    PIECEWISE = "piecewise"


def parse_size(text: str) -> int:
    """Bytes of a size as people write it: 1KiB is 1024, 1.5KB is 1500, 7 is 7."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"size: found {text!r}; wanted a number and a unit. Write it like 139GiB, 80GB or 500MiB.")
    number, prefix, binary = found.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** (POWERS[prefix.upper()] if prefix else 0))


def show_size(num_bytes: int) -> str:
    """Bytes for a person: 1536 is 1.50 KiB."""
    size, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} bytes" if unit == "bytes" else f"{size:.2f} {unit}"


Model = Annotated[
    str, typer.Option("--model", "-m", metavar="NAME", help=f"{EMBEDDED}, a directory, a .gguf file or a hub id")
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="As --model of generate.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "--max-new-tokens", metavar="N", help="generate at most")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", metavar="X", help="0 is greedy")]
MODELS_OWN = "the model's"
ModelTemperature = Annotated[
    float | None, typer.Option("--temperature", "-t", metavar="X", help="0 is greedy", show_default=MODELS_OWN)
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", metavar="X", help="sample from this share of the probability", show_default=MODELS_OWN),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", metavar="N", help="sample from the best N; 0 is all", show_default=MODELS_OWN)
]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", metavar="X", help="drop tokens below X times the best one", show_default=MODELS_OWN),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="same seed, same tokens")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]

Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N", rich_help_panel=ENGINE_PANEL)
]
Dtype = Annotated[
    str,
    typer.Option("--dtype", metavar="NAME", help="auto, float32, bfloat16 or float16", rich_help_panel=ENGINE_PANEL),
]
LoadFormatOption = Annotated[
    LoadFormat,
    typer.Option(
        "--load-format",
        metavar="NAME",
        help="auto, or dummy: random weights of the same shapes",
        rich_help_panel=ENGINE_PANEL,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        "--context-length",
        metavar="N",
        help="longest context; the model's if left out",
        rich_help_panel=ENGINE_PANEL,
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs",
        "--max-running-requests",
        metavar="N",
        help="requests that run at once",
        show_default=f"{CPU_SIZES.max_num_seqs}, GPU {CUDA_SIZES.max_num_seqs}",
        rich_help_panel=ENGINE_PANEL,
    ),
]
MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
        metavar="N",
        help="prompt tokens of a step",
        show_default=f"{CPU_SIZES.max_num_batched_tokens}, GPU {CUDA_SIZES.max_num_batched_tokens}",
        rich_help_panel=ENGINE_PANEL,
    ),
]
KvMemoryBytes = Annotated[
    int | None,
    typer.Option(
        "--kv-memory-bytes",
        metavar="SIZE",
        parser=parse_size,
        help="memory for KV, like 4GiB",
        rich_help_panel=ENGINE_PANEL,
    ),
]
PageSize = Annotated[
    int,
    typer.Option("--page-size", "--block-size", metavar="N", help="tokens of a KV page", rich_help_panel=ENGINE_PANEL),
]
EnforceEager = Annotated[
    bool,
    typer.Option("--enforce-eager", "--disable-cuda-graph", help="capture nothing", rich_help_panel=ENGINE_PANEL),
]
GraphModeOption = Annotated[
    GraphMode | None,
    typer.Option(
        "--graph-mode",
        metavar="MODE",
        help="of prefill: full, breakable or piecewise",
        show_default="breakable, GPU full",
        rich_help_panel=ENGINE_PANEL,
    ),
]
NoPrefixCaching = Annotated[
    bool,
    typer.Option(
        "--no-enable-prefix-caching",
        "--disable-radix-cache",
        help="forget prompts",
        rich_help_panel=ENGINE_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """The engine's settings as the command line has them."""

    device: str = DEFAULTS.device
    dtype: str = DEFAULTS.dtype
    load_format: LoadFormat = DEFAULTS.load_format
    max_model_len: int | None = DEFAULTS.max_model_len
    max_num_seqs: int | None = DEFAULTS.max_num_seqs
    max_num_batched_tokens: int | None = DEFAULTS.max_num_batched_tokens
    kv_memory_bytes: int | None = DEFAULTS.kv_memory_bytes
    page_size: int = DEFAULTS.page_size
    enforce_eager: bool = False
    graph_mode: GraphMode | None = None
    no_prefix_caching: bool = False


def engine_config(flags: EngineFlags) -> EngineConfig:
    """The configuration these flags ask for; a device that is not there is refused before anything is loaded."""
    check_device(flags.device)
    return replace(
        DEFAULTS,
        device=flags.device,
        dtype=flags.dtype,
        load_format=flags.load_format,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        kv_memory_bytes=flags.kv_memory_bytes,
        page_size=flags.page_size,
        graph_mode=asked_mode(flags),
        enable_prefix_caching=not flags.no_prefix_caching,
    )


def asked_mode(flags: EngineFlags) -> Mode | None:
    if flags.enforce_eager:
        return Mode.EAGER
    return None if flags.graph_mode is None else Mode(flags.graph_mode.value)


def check_device(name: str) -> None:
    """Refuse a device this machine does not have."""
    if name in ("auto", "cpu"):
        return
    count = torch.cuda.device_count()
    here = ("auto", "cpu", *(("cuda",) if count else ()), *(f"cuda:{i}" for i in range(count)))
    if name not in here:
        raise ConfigError(f"device: found {name!r}; wanted one this machine has: {', '.join(here)}. Choose one.")
