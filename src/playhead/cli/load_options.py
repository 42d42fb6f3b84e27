"""The options of `playhead bench serve` and `playhead bench compare`. No torch, no numpy."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from playhead.cli.options import AS_JSON, output_path
from playhead.engine.config import EMBEDDED
from playhead.load.spec import Endpoint
from playhead.settings import Setting, check_settings, declare, refused_flag, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServeOptions:
    """Which server, how it is asked, what is good enough, where the figures go."""

    base_url: str | None = declare(
        None,
        Setting(help="the server, like http://127.0.0.1:8000; one of our own is started if left out", metavar="URL"),
    )
    model: str | None = declare(
        None,
        Setting(
            help=f"the model to ask for, or to serve; the server's first, or {EMBEDDED}, if left out",
            metavar="NAME",
            aliases=("-m",),
        ),
    )
    server_flags: str = declare("", Setting(help="flags of playhead serve, for a server of our own"))
    key_variable: str = declare(
        "OPENAI_API_KEY", Setting(help="environment variable that has the API key", metavar="NAME")
    )
    endpoint: Endpoint = declare(Endpoint.COMPLETIONS, Setting(help="completions or chat", metavar="NAME"))
    max_concurrency: int | None = declare(None, Setting(help="requests at a time; no limit if left out", low=1))
    timeout: float = declare(600.0, Setting(help="seconds until a request is given up", low=0, above=True))
    slo_first_ms: float = declare(
        1000.0, Setting(help="a good request's first token comes within this", low=0, above=True)
    )
    slo_inter_ms: float = declare(
        100.0, Setting(help="a good request has at most this per token after the first", low=0, above=True)
    )
    json_path: Path | None = declare(
        None,
        Setting(help="write all results, for bench compare", flag="--json", metavar="PATH", parse=output_path),
    )
    html_path: Path | None = declare(
        None, Setting(help="write a report in one file", flag="--html", metavar="PATH", parse=output_path)
    )

    def __post_init__(self) -> None:
        check_settings(self, BENCH_SERVE_OPTIONS, refused_flag)


BENCH_SERVE_OPTIONS = settings_of(BenchServeOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Two files, and what counts as a change."""

    first: str = declare(MISSING, Setting(help="results that bench serve wrote with --json", is_positional=True))
    second: str = declare(MISSING, Setting(help="the results to compare with the first", is_positional=True))
    threshold: float = declare(
        0.03, Setting(help="changes below this share do not count", low=0, high=1, metavar="SHARE")
    )
    as_json: bool = declare(False, AS_JSON)

    def __post_init__(self) -> None:
        check_settings(self, COMPARE_OPTIONS, refused_flag)


COMPARE_OPTIONS = settings_of(CompareOptions)
