"""Tokens per second of requests with forms, beside plain ones: `PYTHONPATH=src python -m bench.structured`.

Batches of equal size decode side by side: all plain, all with a form, and plain ones beside one or several with a
form. Each batch has an engine of its own over the same weights. The engines take turns of a few steps, so that a busy
machine is busy for all of them. Within a batch every request draws with a seed of its own, so that their forms do not
reach the same place at once. Forms cannot be finished within the tokens that are measured.

Time is what the process took of a processor, all threads together: on a shared machine the clock says little. All
that the host does in a step counts. Not counted are, in every batch alike, steps that read prompts, in which requests
end, or that capture a graph, as each size does once. A step that took over three times its batch's median was disturbed
by other work; it counts as the median, and the number of these is printed.

A batch with forms is compared by the tokens of all its requests, those that had to follow included. Plain requests
beside forms are compared by their own tokens alone. A ratio is of tokens/s over all turns, against the plain batch's.
Its interval comes from drawing the rounds of turns anew. The ratio of the median steps is less disturbed by other work
on the machine, and knows nothing of steps that gave several tokens, or took long to do so.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.measure import emit
from playhead.engine.engine import Engine
from playhead.llm import LLM
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.step.build import build_worker
from playhead.structured_outputs import StructuredOutputs

PROMPT = "It is a truth universally acknowledged, that"
FORMS: Mapping[str, StructuredOutputs | None] = {
    "plain": None,
    "json": StructuredOutputs(
        json={"type": "array", "items": {"type": "string", "minLength": 80, "maxLength": 200}, "minItems": 40}
    ),
    "regex": StructuredOutputs(regex=r"([A-Z][a-z ,]{20,60}\. ){40}"),
    "records": StructuredOutputs(
        json={
            "type": "array",
            "minItems": 60,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
        },
        disable_any_whitespace=True,
    ),
}
DISTURBED = 3  # times the median
NUM_DRAWS = 2000


def batches(num_rows: int) -> dict[str, list[str]]:
    """The forms of every batch, by name."""
    mixed = {f"plain beside {n} json": ["json"] * n + ["plain"] * (num_rows - n) for n in (1, num_rows // 4)}
    return {form: [form] * num_rows for form in FORMS} | mixed


class Step(NamedTuple):
    """A step in which every request got a token. `num_tokens` are those that its batch is compared by."""

    turn: int
    seconds: float
    num_tokens: int


@dataclass(kw_only=True, eq=False)  # mutable: requests come and go
class Lane:
    """A batch that decodes for ever: when its requests end, the same ones come again with other seeds."""

    engine: Engine
    forms: Sequence[str]
    num_tokens: int
    temperature: float
    turn_steps: int
    steps: list[Step] = field(default_factory=list)
    num_added: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    def add(self) -> None:
        """Queue the requests of the batch."""
        self.lengths = {}
        for row, form in enumerate(self.forms):
            wanted = FORMS[form]
            params = SamplingParams(
                temperature=self.temperature,
                seed=self.num_added,
                max_tokens=self.num_tokens,
                structured_outputs=wanted,
                ignore_eos=wanted is None,
            )
            self.engine.add_request(f"{row} {form}", PROMPT, params)
            self.num_added += 1

    def take_turn(self, turn: int) -> None:
        """So many steps that count."""
        num_counted = 0
        while num_counted < self.turn_steps:
            if not self.engine.has_work:
                self.add()
            num_graphs, started_s = self.num_graphs, time.process_time()
            outputs = self.engine.step()
            seconds = time.process_time() - started_s
            step = self._counted(turn, seconds, outputs)
            if step is not None and self.num_graphs == num_graphs:
                self.steps.append(step)
                num_counted += 1

    def _counted(self, turn: int, seconds: float, outputs: Sequence[RequestOutput]) -> Step | None:
        """None for a step that began or ended a request."""
        lengths = {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        before, self.lengths = self.lengths, self.lengths | lengths
        is_whole = before.keys() == lengths.keys() and len(lengths) == len(self.forms)
        if not is_whole or any(output.finished for output in outputs):
            return None
        is_mixed = len(set(self.forms)) > 1
        compared = [name for name in lengths if name.endswith("plain") or not is_mixed]
        return Step(turn, seconds, sum(lengths[name] - before[name] for name in compared))

    @property
    def num_graphs(self) -> int:
        return sum(len(runner.captured) for runner in self.engine.worker.runners)

    @property
    def median_s(self) -> float:
        """Of a step."""
        return statistics.median(step.seconds for step in self.steps)

    @property
    def num_compared(self) -> int:
        """The requests whose tokens count."""
        return self.forms.count("plain") or len(self.forms)


class Rounds:
    """The seconds and tokens of a lane, turn by turn."""

    def __init__(self, lane: Lane, num_turns: int) -> None:
        median_s = lane.median_s
        self.seconds, self.tokens, self.num_disturbed = [0.0] * num_turns, [0.0] * num_turns, 0
        for turn, seconds, num_tokens in lane.steps:
            is_disturbed = seconds > DISTURBED * median_s
            self.num_disturbed += is_disturbed
            self.seconds[turn] += median_s if is_disturbed else seconds
            self.tokens[turn] += num_tokens / lane.num_compared

    def rate(self, turns: Sequence[int]) -> float:
        """Tokens per second of each request, over these turns."""
        return sum(self.tokens[turn] for turn in turns) / sum(self.seconds[turn] for turn in turns)


def interval(lane: Rounds, plain: Rounds, num_turns: int) -> tuple[float, float]:
    """Where 95 of 100 ratios lie when the rounds are drawn anew."""
    draw = random.Random(1)
    ratios = []
    for _ in range(NUM_DRAWS):
        turns = draw.choices(range(num_turns), k=num_turns)
        ratios.append(lane.rate(turns) / plain.rate(turns))
    ratios.sort()
    return ratios[NUM_DRAWS // 40], ratios[-NUM_DRAWS // 40]


def lanes_of(first: Engine, options: argparse.Namespace) -> dict[str, Lane]:
    """An engine for each batch, all over the weights of the first."""
    found: dict[str, Lane] = {}
    for name, forms in batches(options.rows).items():
        if options.only and name not in ("plain", *options.only):
            continue
        worker = build_worker(first.worker.model.decoder, first.worker.config)
        engine = Engine(worker, first.tokenizer, config=first.config, name=name)
        found[name] = Lane(
            engine=engine,
            forms=forms,
            num_tokens=options.tokens,
            temperature=options.temperature,
            turn_steps=options.turn_steps,
        )
    return found


def measured(lanes: Mapping[str, Lane], seconds: float) -> int:
    """Turns until the time is over; gives how many each lane had. The first one captures and does not count."""
    order = list(lanes.values())
    for lane in order:
        lane.take_turn(0)
        lane.steps.clear()
    end_s, turn = time.monotonic() + seconds, 0
    while turn < 2 or time.monotonic() < end_s:
        for lane in order:
            lane.take_turn(turn)
        order.append(order.pop(0))  # nobody always comes after the same one
        turn += 1
    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure, by the clock")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--turn-steps", type=int, default=8, help="steps of a batch before the next one's turn")
    parser.add_argument("--only", nargs="*", default=[], help="batches to compare with the plain one")
    options = parser.parse_args()
    with LLM(options.model, max_model_len=256, max_num_seqs=options.rows) as llm:
        lanes = lanes_of(llm.engine, options)
        num_turns = measured(lanes, options.seconds)
    rounds = {name: Rounds(lane, num_turns) for name, lane in lanes.items()}
    for name, one in rounds.items():
        low, high = interval(one, rounds["plain"], num_turns)
        emit(
            "structured",
            batch=name,
            rows=options.rows,
            turns=num_turns,
            step_us=1e6 * lanes[name].median_s,
            tokens_a_step=statistics.mean(step.num_tokens for step in lanes[name].steps) / lanes[name].num_compared,
            ratio=one.rate(range(num_turns)) / rounds["plain"].rate(range(num_turns)),
            low=low,
            high=high,
            median_ratio=lanes["plain"].median_s / lanes[name].median_s,
            disturbed=one.num_disturbed,
        )
    print(
        "\nratio: tokens/s of a processor over the plain batch's; low and high: 95% of the ratios of drawn rounds; "
        "median_ratio: of the median steps"
    )


if __name__ == "__main__":
    main()
