"""Tokens per second of requests with forms, beside plain ones: `PYTHONPATH=src python -m bench.structured`.

Batches of equal size decode in turn, round after round in one engine, so that a busy machine is busy for all of them:
all plain, all with a form, and plain ones beside one or several with a form. Ratios are of the mean time of a step
for each token that it gave, by the clock and by the seconds of a processor that the process took: on a shared machine
the clock says little.
Forms cannot be finished within the tokens that are measured.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.measure import emit
from playhead.engine.engine import Engine
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
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


def params_of(form: str, num_tokens: int, temperature: float) -> SamplingParams:
    wanted = FORMS[form]
    return SamplingParams(
        temperature=temperature, seed=1, max_tokens=num_tokens, structured_outputs=wanted, ignore_eos=wanted is None
    )


def batches(num_rows: int) -> dict[str, list[str]]:
    """The forms of every batch, by name."""
    mixed = {f"plain beside {n} json": ["json"] * n + ["plain"] * (num_rows - n) for n in (1, num_rows // 4)}
    return {form: [form] * num_rows for form in FORMS} | mixed


class Step(NamedTuple):
    """Microseconds for each token, by the clock and of a processor."""

    wall_us: float
    cpu_us: float


def steps_of(engine: Engine, forms: Sequence[str], num_tokens: int, temperature: float) -> list[Step]:
    """Each step in which every request decodes."""
    for i, form in enumerate(forms):
        engine.add_request(f"{i}", PROMPT, params_of(form, num_tokens, temperature))
    times, num_begun = [], 0
    while engine.has_work:
        start, start_cpu, num_before = time.perf_counter(), time.process_time(), engine.stats.num_generated_tokens
        outputs = engine.step()
        num_tokens_given = max(1, engine.stats.num_generated_tokens - num_before)
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
        elapsed = Step(1e6 * wall_s / num_tokens_given, 1e6 * cpu_s / num_tokens_given)
        num_begun += 1
        is_whole = len(outputs) >= len(forms) and not any(output.finished for output in outputs)
        if num_begun > 4 and is_whole:
            times.append(elapsed)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--temperature", type=float, default=0.8)
    options = parser.parse_args()
    wanted = batches(options.rows)
    times: dict[str, list[Step]] = {name: [] for name in wanted}
    with LLM(options.model, max_model_len=256, max_num_seqs=options.rows) as llm:
        for number in range(options.rounds + 1):
            for name, forms in wanted.items():
                gc.collect()
                found = steps_of(llm.engine, forms, options.tokens, options.temperature)
                if number:  # the first round captures
                    times[name].append(Step(*map(statistics.mean, zip(*found, strict=True))))
    for name, rounds in times.items():
        # Round by round: what slows a round slows all of its batches.
        pairs = list(zip(times["plain"], rounds, strict=True))
        emit(
            "structured",
            batch=name,
            rows=options.rows,
            wall_us=statistics.median(one.wall_us for one in rounds),
            cpu_us=statistics.median(one.cpu_us for one in rounds),
            wall_ratio=statistics.median(plain.wall_us / one.wall_us for plain, one in pairs),
            cpu_ratio=statistics.median(plain.cpu_us / one.cpu_us for plain, one in pairs),
        )
    print("\nratios: the batch's tokens/s over the plain batch's in the same round, the median of the rounds")


if __name__ == "__main__":
    main()
