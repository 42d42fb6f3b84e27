"""Bugs between a front and its replicas, and what notices them. No process is started."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from playhead.awake import AwakeClock
from playhead.engine.config import EngineConfig
from playhead.engine.front import RequestOptions
from playhead.sampling_params import SamplingParams
from playhead.scale import launch as launch_module
from playhead.scale import router as router_module
from playhead.scale.launch import Launched, LocalLauncher
from playhead.scale.router import Loads, PageKey, Reason, Router, page_keys
from playhead.serve import remote_engine, wire
from playhead.serve.contact import SILENT_S, Contact
from playhead.serve.engine_child import EngineChild
from playhead.serve.limits import CHECK_S
from playhead.serve.remote_stream import RemoteStream, Sample
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.scripted_backend import embedded_reader

TENANTS, BOUND, TREE, GOES_ON, REPORTS = (
    "tenants apart",
    "bounded memory",
    "prefixes from the start on",
    "output so far is sent",
    "logprobs of tokens that came",
)
SILENT, HEARD, DEAF, STALLS = "a silent engine", "an engine that beats", "an engine that hears nothing", "own stalls"
GPUS = "a GPU for each replica"
PAGE = 4


@mutant("tenants share what a router knows", source="cache timing tells one tenant of another", killed_by=(TENANTS,))
def salt_forgotten() -> Patch:
    original = page_keys

    def unsalted(tokens: Sequence[int], salt: str, *, page_tokens: int) -> list[PageKey]:
        return original(tokens, "", page_tokens=page_tokens)

    return swapped(router_module, "page_keys", unsalted)


@mutant("a router that never forgets", source="routers that grow with every prompt", killed_by=(BOUND,))
def never_forgets() -> Patch:
    def observe(self: Router, keys: Sequence[PageKey], replica: str) -> None:
        for key in keys:
            self._holders[key] = (replica,)

    return swapped(Router, "observe", observe)


@mutant("a page without those before it", source="hash tables asked for the last page first", killed_by=(TREE,))
def last_page_first() -> Patch:
    def longest(self: Router, keys: Sequence[PageKey]) -> tuple[list[str], int]:
        for i in reversed(range(len(keys))):
            if keys[i] in self._holders:
                return list(self._holders[keys[i]]), i + 1
        return [], 0

    return swapped(Router, "_longest_known", longest)


@mutant("a moved sequence begins anew", source="retries that repeat what was shown", killed_by=(GOES_ON,))
def begins_anew() -> Patch:
    return swapped(Sample, "tokens", property(lambda self: []))


@mutant("logprobs of tokens that never came", source="an engine killed between two frames", killed_by=(REPORTS,))
def reports_kept() -> Patch:
    def keep(self: Sample) -> None:
        return None

    return swapped(Sample, "interrupted", keep)


@mutant("silence without end", source="connections whose other machine is gone", killed_by=(SILENT,))
def silence_without_end() -> Patch:
    return swapped(Contact, "is_lost", property(lambda self: False))


@mutant("a beat ignored", source="watchdogs that end what is well", killed_by=(HEARD,))
def a_beat_ignored() -> Patch:
    return swapped(Contact, "came", lambda self: None)


@mutant("an engine that hears nothing passes", source="networks that lose one way alone", killed_by=(DEAF,))
def any_beat_answers() -> Patch:
    def beat(self: Contact, beat: wire.Beat) -> None:
        self._is_deaf = False

    return swapped(Contact, "beat", beat)


@mutant("own stalls charged", source="watchdogs after a suspended machine wakes", killed_by=(STALLS,))
def own_stalls_charged() -> Patch:
    def tick(self: AwakeClock) -> float:
        now_s = self._clock()
        self.now_s += now_s - self._ticked_s
        self._ticked_s = now_s
        return self.now_s

    return swapped(AwakeClock, "tick", tick)


@mutant("a GPU taken when its process runs", source="found here: replicas launched together", killed_by=(GPUS,))
def taken_late() -> Patch:
    async def launch(self: LocalLauncher) -> Launched:
        gpu = self._first_free_gpu()
        config = replace(self._config, device=f"cuda:{gpu}")
        child = self._of_gpu[gpu] = await launch_module.started(config)
        return Launched(host=child, config=config)

    return swapped(LocalLauncher, "launch", launch)


def tenants_apart() -> list[str]:
    """Equal prompts of two tenants have no key in common."""
    one, two = (set(router_module.page_keys(range(16), salt, page_tokens=PAGE)) for salt in ("one", "two"))
    return [f"{len(one & two)} keys in common"] if one & two else []


def bounded_memory() -> list[str]:
    """A router that was shown many prompts remembers as many pages as it may."""
    router = Router(["a"], max_pages=8)
    for i in range(50):
        router.observe(page_keys([i] * 8, "", page_tokens=PAGE), "a")
    return [] if router.num_pages == 8 else [f"{router.num_pages} pages"]


def prefixes_from_the_start() -> list[str]:
    """A replica that has a later page alone has nothing of use."""
    router, keys = Router(["a", "b"]), page_keys(range(8), "", page_tokens=PAGE)
    router.observe(keys[:1], "a")
    router.observe(keys[1:], "b")
    choice = router.choose(keys, Loads(["a", "b"]))
    return [] if choice == ("a", Reason.PREFIX, 1) else [f"chose {choice}"]


def interrupted_sample() -> Sample:
    """A sequence with logprobs that had two tokens when its engine died, in the middle of the third's frames."""
    reader = embedded_reader()
    checked = reader.check([5, 6], SamplingParams(logprobs=0, max_tokens=8, temperature=0))
    stream = RemoteStream("r", checked, RequestOptions(), abort=lambda samples: None)
    stream.add_samples(1, reader)
    (sample,) = stream.samples
    for token in (7, 8):
        sample.reported(wire.Reports(1, tokens=(((token, -0.5, 1),),)))
        sample.came([token], None, 0)
    sample.reported(wire.Reports(1, tokens=(((9, -0.5, 1),),)))
    sample.interrupted()
    return sample


def output_so_far_is_sent() -> list[str]:
    """Another engine is told every token that came."""
    sent = wire.words_of(remote_engine.submission(interrupted_sample()).output).tolist()
    return [] if sent == [7, 8] else [f"sent {sent}"]


def logprobs_of_tokens_that_came() -> list[str]:
    """The logprobs of the token after the pause are its own."""
    sample = interrupted_sample()
    sample.reported(wire.Reports(1, tokens=(((11, -0.25, 1),),)))
    sample.came([11], None, 0)
    sample.read()
    tables = sample.completion(0, is_delta=False).logprobs or []
    found = [next(iter(table)) for table in tables]
    return [] if found == [7, 8, 11] else [f"logprobs of {found}"]


def seconds_until_lost(*, every_s: float = CHECK_S, beats: bool = False, hears: bool = True) -> float | None:
    """How much later an engine that serves counts as lost, by a front that looks so often; None if it never does."""
    now_s, num_heard = 0.0, 0
    contact = Contact(SILENT_S, lambda: now_s)
    contact.loaded()
    for _ in range(100):
        now_s += every_s
        number = contact.look().number
        if contact.is_lost:
            return now_s
        num_heard = number if hears else num_heard
        if beats:
            contact.came()
            contact.beat(wire.Beat(1, False, num_heard))
    return None


def silent_engine() -> list[str]:
    """An engine of which nothing comes is lost after the limit."""
    found = seconds_until_lost()
    return [] if found == SILENT_S else [f"lost after {found} s"]


def engine_that_beats() -> list[str]:
    """An engine whose beats come is never lost."""
    found = seconds_until_lost(beats=True)
    return [] if found is None else [f"lost after {found} s"]


def engine_that_hears_nothing() -> list[str]:
    """An engine whose beats come, and that hears nothing, is lost after the limit."""
    found = seconds_until_lost(beats=True, hears=False)
    return [] if found == SILENT_S else [f"lost after {found} s"]


def own_stalls() -> list[str]:
    """A front that stands for a minute between two looks has heard nothing since the first, and knows why."""
    found = seconds_until_lost(every_s=60)
    return [] if found == 60 * SILENT_S / CHECK_S else [f"lost after {found} s"]


def a_gpu_for_each() -> list[str]:
    """Two replicas that are launched together on a machine of two GPUs have one each."""

    async def no_process(config: EngineConfig) -> EngineChild:
        await asyncio.sleep(0)
        return EngineChild(process=cast(Any, None), connection=cast(Any, None))

    async def launched() -> list[str]:
        launcher = LocalLauncher(EngineConfig(device="cuda"))
        return [one.config.device for one in await asyncio.gather(launcher.launch(), launcher.launch())]

    with tempfile.TemporaryDirectory() as devices:
        for name in ("nvidia0", "nvidia1"):
            (Path(devices) / name).touch()
        with swapped(launch_module, "DEVICES", Path(devices)), swapped(launch_module, "started", no_process):
            found = asyncio.run(launched())
    return [] if found == ["cuda:0", "cuda:1"] else [f"on {found}"]


SCALE_MUTANTS: tuple[Mutant, ...] = (
    salt_forgotten,
    never_forgets,
    last_page_first,
    begins_anew,
    reports_kept,
    silence_without_end,
    a_beat_ignored,
    any_beat_answers,
    own_stalls_charged,
    taken_late,
)
SCALE_CHECKERS: tuple[Checker, ...] = (
    Checker(name=TENANTS, run=tenants_apart),
    Checker(name=BOUND, run=bounded_memory),
    Checker(name=TREE, run=prefixes_from_the_start),
    Checker(name=GOES_ON, run=output_so_far_is_sent),
    Checker(name=REPORTS, run=logprobs_of_tokens_that_came),
    Checker(name=SILENT, run=silent_engine),
    Checker(name=HEARD, run=engine_that_beats),
    Checker(name=DEAF, run=engine_that_hears_nothing),
    Checker(name=STALLS, run=own_stalls),
    Checker(name=GPUS, run=a_gpu_for_each),
)
