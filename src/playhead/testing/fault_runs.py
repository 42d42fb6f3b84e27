"""Runs with faults in them: an engine takes requests while exceptions are raised inside its steps.

After every fault the engine is asked to go on. What must hold: every request gets the tokens it gets alone, or, where
the fault hit the making of its own text, an error that keeps the cause; the account of pages is clean; no row, page or
step is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.errors import PlayheadError, RequestFailed
from playhead.kv.ledger import Ledger
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.testing.faults import ERRORS, PLAIN_SITES, Injection, injected
from playhead.testing.tiny_engine import Ask, checked_ask

FIRST_GUESS = 40  # places passed inside a site, before it has been seen to run
MAX_STEPS = 4000


@dataclass(slots=True, kw_only=True)  # mutable: it remembers how large the sites are
class FaultPicker:
    """Which fault comes next: sites and errors in turn, the place at random between the site's first and last line."""

    rng: random.Random
    sites: Sequence[str] = PLAIN_SITES
    errors: Sequence[type[BaseException]] = ERRORS
    num_places: dict[str, int] = field(default_factory=dict)
    num_by_site: Counter[str] = field(default_factory=Counter)
    num_by_error: Counter[str] = field(default_factory=Counter)
    num_picked: int = 0

    def pick(self) -> tuple[str, type[BaseException], int]:
        site = self.sites[self.num_picked % len(self.sites)]
        error = self.errors[(self.num_picked // len(self.sites)) % len(self.errors)]
        self.num_picked += 1
        return site, error, self.rng.randrange(self.num_places.get(site, FIRST_GUESS))

    def learn(self, site: str, injection: Injection) -> None:
        """Count a fault that was raised; remember how many places there were where it was not."""
        if injection.raised_at is not None:
            self.num_by_site[site] += 1
            self.num_by_error[injection.error.__name__] += 1
        elif injection.num_passed:
            self.num_places[site] = injection.num_passed

    @property
    def num_raised(self) -> int:
        return self.num_by_site.total()


@dataclass(slots=True, kw_only=True)  # mutable: filled in by a run
class FaultReport:
    """What a run gave: the last output of every request, and what must not be."""

    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)
    num_steps: int = 0


def run_with_faults(
    engine: Engine,
    asks: Sequence[Ask],
    picker: FaultPicker,
    is_faulty: Callable[[int], bool],
    *,
    check: Callable[[Engine, Ask], CheckedPrompt] = checked_ask,
) -> FaultReport:
    """All requests to their ends, with a fault in every step that `is_faulty` names."""
    report = FaultReport()
    pending = sorted(asks, key=lambda ask: ask.comes)
    for number in range(MAX_STEPS):
        while pending and pending[0].comes <= number and engine.can_take:
            ask = pending.pop(0)
            engine.submit(ask.name, check(engine, ask), RequestOptions(priority=ask.priority))
        report.num_steps += 1
        if is_faulty(number):
            faulty_step(engine, picker, report)
        else:
            keep_last(report, engine.step())
        if not pending and not engine.has_work:
            return report
    report.found.append(f"requests are not done after {MAX_STEPS} steps")
    return report


def faulty_step(engine: Engine, picker: FaultPicker, report: FaultReport) -> None:
    """One step with one fault armed. Whether it is reached depends on what the step does."""
    site, error, at = picker.pick()
    with injected(site, error, at) as injection:
        try:
            keep_last(report, engine.step())
        except error as raised:
            if "injected" not in str(raised):
                raise
            keep_last(report, engine.take_ready())
    picker.learn(site, injection)
    report.found += [f"after {error.__name__} at {injection.raised_at}: {line}" for line in account_violations(engine)]


def keep_last(report: FaultReport, outputs: Sequence[RequestOutput]) -> None:
    for output in outputs:
        if output.finished:
            if output.request_id in report.outputs:
                report.found.append(f"request {output.request_id!r} ended twice")
            report.outputs[output.request_id] = output


def account_violations(engine: Engine) -> list[str]:
    """What is wrong with pages and rows. While the account waits to be counted again there is nothing to say."""
    kv = engine.worker.kv
    engine.worker.settle()  # as the next step would do first
    if not kv.settle():
        return [] if engine.worker.steps_in_flight else ["the account is in doubt though nothing is in flight"]
    found = [str(violation) for violation in Ledger(kv).audit()]
    num_rows = kv.rows.num_free + len(kv.sequences)
    if num_rows != kv.plan.limits.max_running:
        found.append(f"{num_rows} rows free or taken, of {kv.plan.limits.max_running}")
    return found


def check_outputs(report: FaultReport, wanted: Mapping[str, list[int]], num_raised: int) -> list[str]:
    """Every request has its own tokens, or an error that keeps its cause; no more errors than faults."""
    found = list(report.found)
    num_failed = 0
    for name, tokens in wanted.items():
        output = report.outputs.get(name)
        if output is None:
            found.append(f"request {name!r} has no end")
        elif output.error is not None:
            num_failed += 1
            if not isinstance(output.error, RequestFailed) or output.error.__cause__ is None:
                found.append(f"request {name!r}: {output.error!r} without its cause")
            if output.outputs[0].token_ids != tokens[: len(output.outputs[0].token_ids)]:
                found.append(f"request {name!r} failed after wrong tokens")
        elif output.outputs[0].token_ids != tokens:
            found.append(f"request {name!r}: {output.outputs[0].token_ids}; alone {tokens}")
    if num_failed > num_raised:
        found.append(f"{num_failed} requests failed by {num_raised} faults")
    return found


def interrupted_ends(engine: Engine, site: str, *, streams: bool) -> tuple[list[str], int]:
    """What is wrong with the ends of requests, one after the other, with an interrupt at the first place of a site in
    the step that reads their only token, then at the second, ... Gives also how many places there were.
    """
    wanted, found = end_of_one(engine, "alone", streams).outputs[0].token_ids, list[str]()
    for at in range(MAX_STEPS):
        injection = Injection(error=KeyboardInterrupt, at=at)
        try:
            output = end_of_one(engine, f"r{at}", streams, site, injection)
        except PlayheadError as error:
            return [*found, f"interrupted at {injection.raised_at}: {error}"], at
        if output.error is None and output.outputs[0].token_ids != wanted:
            found.append(f"interrupted at {injection.raised_at}: {output.outputs[0].token_ids}; wanted {wanted}")
        found += account_violations(engine)
        if injection.raised_at is None:
            return found, at
    return [*found, f"a site with more than {MAX_STEPS} places"], MAX_STEPS


def end_of_one(
    engine: Engine, name: str, streams: bool, site: str | None = None, injection: Injection | None = None
) -> RequestOutput:
    """The only finished output of a request for one token, in whose steps the injection is armed until it is raised."""
    report, params = FaultReport(), SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    engine.submit(name, engine.reader.check([1, 2, 3], params), RequestOptions(streams=streams))
    for _ in range(MAX_STEPS):
        if not engine.has_work:
            break
        if site is None or injection is None or injection.raised_at is not None:
            keep_last(report, engine.step())
            continue
        with injected(site, injection.error, injection.at) as armed, suppress(KeyboardInterrupt):
            keep_last(report, engine.step())
        keep_last(report, engine.take_ready())
        injection.raised_at = armed.raised_at
    if report.found or name not in report.outputs:
        raise PlayheadError(f"request {name!r}: {report.found or 'no end'}")
    return report.outputs[name]


def leftovers(engine: Engine) -> list[str]:
    """What an idle engine still holds."""
    kv, found = engine.worker.kv, account_violations(engine)
    if kv.in_doubt or kv.sequences or engine.worker.steps_in_flight:
        found.append(f"in doubt: {kv.in_doubt}, sequences: {sorted(kv.sequences)}, {engine.worker.steps_in_flight}")
    found += [f"{count} pages of group {index} held" for index, count in enumerate(kv.allocator.num_held) if count]
    found += [
        f"{count} pages of group {index} pending" for index, count in enumerate(kv.allocator.num_pending) if count
    ]
    return found
