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
from playhead.errors import EnginesLost
from playhead.sampling_params import SamplingParams
from playhead.scale import fleet as fleet_module
from playhead.scale import launch as launch_module
from playhead.scale import router as router_module
from playhead.scale.fleet import FleetConfig
from playhead.scale.launch import Launched, LocalLauncher
from playhead.scale.replicas import ReplicatedBackend
from playhead.scale.router import Loads, PageKey, Reason, Router, page_keys
from playhead.serve import failures, remote_engine, wire
from playhead.serve.contact import SILENT_S, Contact
from playhead.serve.engine_child import EngineChild
from playhead.serve.limits import CHECK_S
from playhead.serve.remote_engine import RemoteEngine
from playhead.serve.remote_stream import RemoteStream, Sample
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.scripted_backend import embedded_reader
from playhead.testing.scripted_engines import ScriptedLauncher, quiet, scripted_fleet

TENANTS, BOUND, TREE, GOES_ON, REPORTS = (
    "tenants apart",
    "bounded memory",
    "prefixes from the start on",
    "output so far is sent",
    "logprobs of tokens that came",
)
SILENT, HEARD, DEAF, STALLS = "a silent engine", "an engine that beats", "an engine that hears nothing", "own stalls"
GPUS = "a GPU for each replica"
DRAINED, DELAYS, LONG_PROMPTS = "sequences of replicas that drain", "delays between starts", "a prompt without end"
ONCE, GONE = "logprobs of a prompt, once", "places of replicas that are gone"
AGAIN = "what loses engines is not asked for again"
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


@mutant("a drained replica counts as a lost one", source="found here: scaling down ended streams", killed_by=(DRAINED,))
def drained_is_lost() -> Patch:
    on_gone = ReplicatedBackend.on_gone

    def lost(self: ReplicatedBackend, engine: RemoteEngine, *, was_lost: bool) -> None:
        on_gone(self, engine, was_lost=True)

    return swapped(ReplicatedBackend, "on_gone", lost)


@mutant("delays without bound", source="found here: 2.0 ** 1024 is no float, and ended a starter", killed_by=(DELAYS,))
def delays_without_bound() -> Patch:
    return swapped(fleet_module, "MAX_DOUBLINGS", 1 << 20)


@mutant("all of a long prompt is looked at", source="found here: a million tokens, 0.6 s", killed_by=(LONG_PROMPTS,))
def all_of_a_prompt() -> Patch:
    return swapped(router_module, "MAX_PROMPT_PAGES", 1 << 40)


@mutant("a prompt's logprobs read too early", source="found here: a read between two frames", killed_by=(ONCE,))
def prompt_read_too_early() -> Patch:
    read = Sample.read

    def early(self: Sample) -> None:
        had_begun, self.has_begun = self.has_begun, True
        read(self)
        self.has_begun = had_begun

    return swapped(Sample, "read", early)


@mutant("dead replicas keep their places", source="found here: holders of a page are few", killed_by=(GONE,))
def dead_keep_places() -> Patch:
    def observe(self: Router, keys: Sequence[PageKey], replica: str) -> None:
        for key in keys:
            others = tuple(name for name in self._holders.pop(key, ()) if name != replica)
            self._holders[key] = (replica, *others[: router_module.MAX_HOLDERS - 1])

    return swapped(Router, "observe", observe)


@mutant(
    "what loses engines may be sent again", source="found here: clients repeat a 503 by themselves", killed_by=(AGAIN,)
)
def sent_again() -> Patch:
    return swapped(failures, "EnginesLost", NeverRaised)


class NeverRaised(EnginesLost):
    """What no backend raises."""


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


def sequences_of_replicas_that_drain() -> list[str]:
    """A sequence that may lose no engine goes on when its own is told to end, and a second time too."""

    async def drained() -> list[str]:
        now_s = [0.0]
        launcher = ScriptedLauncher()
        backend = scripted_fleet(launcher, FleetConfig(num_replicas=2, max_retries=0, drain_s=1), lambda: now_s[0])
        await backend.start()
        try:
            checked = backend.reader.check([5], SamplingParams(max_tokens=8, temperature=0))
            stream = backend.submit("r", checked, RequestOptions())
            for _ in range(2):
                (engine,) = (one for one in backend.fleet.engines.values() if one.samples)
                backend.fleet._drain(engine)
                now_s[0] += 2
                backend.check()
                await quiet()
                if stream.is_over:
                    return ["it ended"]
            return []
        finally:
            await backend.close()
            await quiet()

    return asyncio.run(drained())


def not_asked_for_again() -> list[str]:
    """A request that was with engine after engine is answered so that no client sends it once more."""
    answer = failures.failure(EnginesLost("r", 4))
    is_so = answer.headers.get("X-Should-Retry") == "false" and "Retry-After" not in answer.headers
    return [] if is_so else [f"{answer.status} with {dict(answer.headers)}"]


def delays_between_starts() -> list[str]:
    """A starter that has failed for days waits as long as one that has failed for a minute."""
    found = fleet_module.delay_s(100_000)
    return [] if found == fleet_module.MAX_DELAY_S else [f"{found} s"]


def prompt_without_end() -> list[str]:
    """A prompt of any length has a bounded number of keys."""
    found = len(router_module.page_keys(range(20_000 * PAGE), "", page_tokens=PAGE))
    return [] if found < 5000 else [f"{found} keys"]


def logprobs_of_a_prompt_once() -> list[str]:
    """They came, somebody read, and the engine died before the first token: the next engine sends them again."""
    reader = embedded_reader()
    checked = reader.check([5, 6], SamplingParams(prompt_logprobs=0, max_tokens=8, temperature=0))
    stream = RemoteStream("r", checked, RequestOptions(), abort=lambda samples: None)
    stream.add_samples(1, reader)
    (sample,) = stream.samples
    for ends in (False, True):
        sample.reported(wire.Reports(1, prompt=(((6, -0.5, 1),),)))
        if ends:
            sample.came([7], None, 0)
        sample.read()
        if not ends:
            sample.interrupted()
    found = len(sample.prompt_logprobs or ())
    return [] if found == 2 else [f"{found} places of a prompt of 2 tokens"]


def places_of_replicas_that_are_gone() -> list[str]:
    """A replica that has served longest is still known when others came and went."""
    router, keys = Router(["old"]), page_keys(range(PAGE), "", page_tokens=PAGE)
    router.observe(keys, "old")
    for i in range(8):
        router.add(f"r{i}")
        router.observe(keys, f"r{i}")
        router.forget(f"r{i}")
    choice = router.choose(keys, Loads(["old"]))
    return [] if choice == ("old", Reason.PREFIX, 1) else [f"chose {choice}"]


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
    drained_is_lost,
    delays_without_bound,
    all_of_a_prompt,
    prompt_read_too_early,
    dead_keep_places,
    sent_again,
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
    Checker(name=DRAINED, run=sequences_of_replicas_that_drain),
    Checker(name=DELAYS, run=delays_between_starts, raises=(OverflowError,)),
    Checker(name=LONG_PROMPTS, run=prompt_without_end),
    Checker(name=ONCE, run=logprobs_of_a_prompt_once),
    Checker(name=GONE, run=places_of_replicas_that_are_gone),
    Checker(name=AGAIN, run=not_asked_for_again),
)
