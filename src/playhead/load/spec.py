"""What a load is made of, as settings with flags. No numpy here: help must not wait for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from playhead.errors import ConfigError, shown
from playhead.settings import Setting, Switch, check_settings, declare, refused_flag, settings_of

MAX_RATIO = 0.99
MAX_REQUESTS = 1_000_000


class Arrivals(StrEnum):
    """When requests are sent."""

    POISSON = "poisson"
    """As independent people send them: the gaps are exponential."""
    BURST = "burst"
    """In groups of `burst_size` at once; the groups come as Poisson's do."""
    CONSTANT = "constant"
    """With equal gaps."""


class LengthKind(StrEnum):
    """How lengths vary."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    """Evenly from `range_ratio` below to `range_ratio` above."""
    LOGNORMAL = "lognormal"
    """Half of them above the given length, with a long tail, as people's are."""


class Dataset(StrEnum):
    """What prompts are."""

    RANDOM = "random"
    """Passages of text, or random token ids, each for itself."""
    MIX = "mix"
    """Conversations of several turns: short questions, long answers, and each turn's prompt has all turns before."""


class PromptKind(StrEnum):
    """How prompts are written."""

    TEXT = "text"
    """As words. Most tokenizers make 1.2 to 1.5 tokens of a word."""
    IDS = "ids"
    """As token ids: exact lengths. For `completions`."""


class Endpoint(StrEnum):
    """Which route is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        return "/v1/completions" if self is Endpoint.COMPLETIONS else "/v1/chat/completions"


def parse_rates(where: str, text: str) -> tuple[float, ...]:
    """8, or 2,4,8 for one run each, or inf for all at once."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(rate > 0 for rate in rates):  # a NaN fails too
        raise ConfigError(
            f"{where}: found {shown(text)}; wanted requests per second like 8, a list like 2,4,8, or inf."
        )
    return rates


def taken_rates(name: str, value: object) -> tuple[float, ...]:
    """Rates as they are kept, from a text or from numbers."""
    if isinstance(value, str):
        return parse_rates(f"--{name}", value)
    listed = value if isinstance(value, list | tuple) else [value]
    flat = [one for part in listed for one in (part if isinstance(part, tuple) else (part,))]
    return parse_rates(f"--{name}", ",".join(map(str, flat)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """The same spec gives the same requests at the same moments."""

    rate: tuple[float, ...] = declare(
        (),
        Setting(
            help="requests per second; a list like 2,4,8 is one run for each; all at once, inf, if left out",
            metavar="X[,X...]",
            aliases=("--request-rate",),
            parse=parse_rates,
            take=taken_rates,
        ),
    )
    arrivals: Arrivals = declare(
        Arrivals.POISSON, Setting(help="poisson, burst (groups at once) or constant", metavar="NAME")
    )
    burst_size: int = declare(8, Setting(help="requests of a burst", low=1, high=MAX_REQUESTS))
    num_prompts: int | None = declare(
        None, Setting(help="requests of a run; 100 if neither this nor --duration is given", low=1, high=MAX_REQUESTS)
    )
    duration: float | None = declare(
        None, Setting(help="seconds during which requests are sent", low=0, high=86_400, above=True)
    )
    warmup: float = declare(0.0, Setting(help="seconds of sending before the measured ones", low=0, high=86_400))
    dataset: Dataset = declare(
        Dataset.RANDOM,
        Setting(
            help="random (each prompt for itself) or mix (conversations, as people have them)",
            metavar="NAME",
            aliases=("--dataset-name",),
        ),
    )
    prompts: PromptKind = declare(
        PromptKind.TEXT, Setting(help="text (lengths in words) or ids (lengths in tokens)", metavar="NAME")
    )
    lengths: LengthKind = declare(
        LengthKind.FIXED,
        Setting(help="fixed, uniform (by --range-ratio) or lognormal (by --sigma)", metavar="NAME"),
    )
    input_len: int = declare(
        64, Setting(help="words or tokens of a prompt, in the middle", low=1, aliases=("--random-input-len",))
    )
    output_len: int = declare(
        32, Setting(help="tokens of an answer, in the middle", low=1, aliases=("--random-output-len",))
    )
    max_input_len: int = declare(768, Setting(help="longer prompts are cut to this", low=1))
    max_output_len: int = declare(512, Setting(help="longer answers are cut to this", low=1))
    range_ratio: float = declare(
        0.5,
        Setting(
            help="uniform lengths vary by this share up and down",
            low=0,
            high=MAX_RATIO,
            aliases=("--random-range-ratio",),
        ),
    )
    sigma: float = declare(0.8, Setting(help="how wide lognormal lengths are", low=0, high=4))
    prefix_len: int = declare(
        0, Setting(help="words or tokens that prompts share, before their own", low=0, aliases=("--random-prefix-len",))
    )
    num_prefixes: int = declare(1, Setting(help="how many different shared prefixes there are", low=1))
    vocab_size: int = declare(4000, Setting(help="ids are drawn below this", low=16))
    temperature: float = declare(0.0, Setting(help="of sampling", low=0, high=2))
    ignore_eos: bool = declare(
        True,
        Setting(
            help="exactly as many tokens as were asked for",
            switches=(Switch(flags=("--no-ignore-eos",), sets=False, help="let the model end its answers"),),
        ),
    )
    seed: int = declare(0, Setting(help="same seed, same requests and moments", low=0))

    def __post_init__(self) -> None:
        check_settings(self, LOAD_SETTINGS, refused_flag)
        if self.duration is not None and math.inf in self.rates:
            raise ConfigError("--duration: it needs a finite --rate, and --rate is inf. Give --num-prompts instead.")

    @property
    def rates(self) -> tuple[float, ...]:
        """One for each run."""
        return self.rate or (math.inf,)


LOAD_SETTINGS = settings_of(LoadSpec)
