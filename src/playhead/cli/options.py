"""The options of every command besides those of the engine and of sampling. No torch."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, replace
from enum import StrEnum
from pathlib import Path

from playhead.cli.command import MODEL
from playhead.engine.config import EMBEDDED, MAX_BYTES
from playhead.env import user_path
from playhead.errors import ConfigError
from playhead.sampling_params import PARAMETERS, SamplingParams
from playhead.settings import Setting, check_settings, declare, parse_size, refused_flag, settings_of

MAX_RANGE_RATIO = 0.99  # a length may shrink to 1%, not to nothing
AS_JSON = Setting(help="print JSON", flag="--json")


def output_path(where: str, text: str) -> Path:
    """A file that can be written, looked at before the work begins: its figures would be lost after it."""
    path = user_path(text)
    if path.is_dir():
        raise ConfigError(f"{where}: found the directory {text!r}; wanted a file. Add a file name.")
    if not path.parent.is_dir():
        raise ConfigError(f"{where}: found no directory {str(path.parent)!r}; wanted one to write in. Make it first.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{where}: {text!r} cannot be written by this user. Choose another place.")
    return path


def paths(name: str, value: object) -> tuple[str, ...]:
    """Paths as they were given; none where the flag was left out."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


class InputFormat(StrEnum):
    """What a file of prompts is."""

    TEXT = "text"
    """One prompt."""
    LINES = "lines"
    """A prompt in each line that is not empty."""
    JSONL = "jsonl"
    """In each line JSON: a text, a list of token ids, or an object with `prompt` or `prompt_token_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What to continue, with which model, and how to show it."""

    prompt: str | None = declare(
        None,
        Setting(help="the text to continue; standard input if left out or -", is_positional=True),
    )
    model: str = declare(EMBEDDED, MODEL)
    file: tuple[str, ...] = declare(
        (),
        Setting(
            help="continue what is in this file; may be repeated",
            metavar="PATH",
            aliases=("-f",),
            take=paths,
        ),
    )
    input_format: InputFormat = declare(
        InputFormat.TEXT,
        Setting(
            help="how files and standard input are read: text is one prompt, lines and jsonl one per line",
            metavar="NAME",
        ),
    )
    as_json: bool = declare(False, replace(AS_JSON, help="print one line of JSON for each prompt"))
    trace: Path | None = declare(
        None,
        Setting(help="write the steps for Perfetto or chrome://tracing", metavar="FILE", parse=output_path),
    )

    def __post_init__(self) -> None:
        check_settings(self, GENERATE_OPTIONS, refused_flag)


GENERATE_OPTIONS = settings_of(GenerateOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Whom to talk to, and whether lines are remembered."""

    model: str = declare(EMBEDDED, MODEL)
    system: str = declare("", Setting(help="what the model is told first"))
    no_history: bool = declare(False, Setting(help="keep no file of the lines you type"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """Which model to bring."""

    model: str = declare(MISSING, Setting(help="owner/name, or owner/name:file.gguf", is_positional=True))
    revision: str | None = declare(None, Setting(help="branch, tag or commit", metavar="NAME"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Which model, on how much memory, and how to show it."""

    model: str = declare(MISSING, replace(MODEL, is_positional=True))
    gpu_memory: int | None = declare(
        None,
        Setting(
            help="plan for a GPU with this much, like 139GiB; this machine's own memory if left out",
            metavar="SIZE",
            parse=parse_size,
            low=1,
            high=MAX_BYTES,
        ),
    )
    as_json: bool = declare(False, AS_JSON)

    def __post_init__(self) -> None:
        check_settings(self, PLAN_OPTIONS, refused_flag)


PLAN_OPTIONS = settings_of(PlanOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions:
    """A load, the device that is to serve it, and what is good enough."""

    gpu: str | None = declare(None, Setting(help="plan for this GPU, whose steps were measured", metavar="NAME"))
    rps: float | None = declare(
        None, Setting(help="requests per second; shows the replicas that serve them", low=0, above=True)
    )
    prompt: int = declare(1024, Setting(help="tokens of a prompt", low=1))
    output: int = declare(256, Setting(help="tokens of an answer", low=1))
    prefix_share: float = declare(
        0.0, Setting(help="share of a prompt that other prompts begin with too", low=0, high=1, metavar="SHARE")
    )
    first_ms: float = declare(1000.0, Setting(help="95% of first tokens are to come within this", low=0, above=True))
    inter_ms: float = declare(100.0, Setting(help="a later token is to take at most this", low=0, above=True))

    def __post_init__(self) -> None:
        check_settings(self, DEMAND_OPTIONS, refused_flag)


DEMAND_OPTIONS = settings_of(DemandOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Which model, and how to show the reports."""

    model: str = declare(EMBEDDED, replace(MODEL, is_positional=True))
    as_json: bool = declare(False, replace(AS_JSON, help="print one line of JSON for each report"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Look at the machine, or at this checkpoint instead."""

    model: str | None = declare(None, Setting(help="look at this checkpoint instead", is_positional=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The demo as it is, or with a bug."""

    broken: bool = declare(False, Setting(help="put the stale-tail bug back and watch the audit find it"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """Nothing to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured, where the figures go, and with how many batches if it is latency."""

    model: str = declare(EMBEDDED, MODEL)
    json_path: Path | None = declare(
        None,
        Setting(
            help="write figures, settings, hardware and versions",
            flag="--json",
            aliases=("--output-json",),
            metavar="PATH",
            parse=output_path,
        ),
    )
    num_iters_warmup: int = declare(1, Setting(group="batches", help="batches before the measured ones", low=0))
    num_iters: int = declare(5, Setting(group="batches", help="measured batches", low=1))

    def __post_init__(self) -> None:
        check_settings(self, BENCH_OPTIONS, refused_flag)


BENCH_OPTIONS = settings_of(BenchOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Lengths are drawn evenly from `random_range_ratio` below to `random_range_ratio` above the given ones."""

    num_prompts: int = declare(
        32, Setting(group="fixed", help="prompts, all sent at once", aliases=("--batch-size",), low=1)
    )
    input_len: int = declare(64, Setting(group="fixed", help="tokens of a prompt", low=1))
    output_len: int = declare(32, Setting(group="fixed", help="tokens of an answer", low=1))
    random_range_ratio: float = declare(
        0.0, Setting(group="drawn", help="lengths vary by this share up and down", low=0, high=MAX_RANGE_RATIO)
    )
    seed: int = declare(0, Setting(group="fixed", help="same seed, same prompts and lengths"))
    temperature: float = declare(1.0, replace(PARAMETERS["temperature"], group="fixed"))

    def __post_init__(self) -> None:
        check_settings(self, WORKLOAD, refused_flag)

    def params(self, num_tokens: int) -> SamplingParams:
        """Exactly that many tokens, whatever the model says."""
        return SamplingParams(
            max_tokens=num_tokens, temperature=self.temperature, seed=self.seed % 2**63, ignore_eos=True
        )


WORKLOAD = settings_of(WorkloadSpec)
