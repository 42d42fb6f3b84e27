"""`playhead generate`: prompts in, their texts out, and how they ran."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from playhead.cli.loading import fitted, loaded, sampling_of
from playhead.cli.options import GenerateOptions
from playhead.cli.prompts import Text
from playhead.cli.screen import Screen
from playhead.engine.config import EngineConfig
from playhead.engine.progress import spinner
from playhead.errors import RequestError
from playhead.graph.shapes import Reason
from playhead.llm import LLM
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.types import Mode


def run_generate(
    screen: Screen, prompts: Sequence[Text], options: GenerateOptions, asked: Mapping[str, Any], config: EngineConfig
) -> None:
    """Text alone goes to a pipe; a terminal also gets the prompt before it and the figures after it."""
    with loaded(options.model, config) as llm:
        params = fitted_to_each(llm, prompts, sampling_of(llm, asked))
        if options.as_json:
            for output in answered(llm, prompts, params):
                screen.out(json.dumps(as_record(output, llm.stats.modes)), highlight=False)
        else:
            show_answers(screen, llm, prompts, params)
        if options.trace is not None:
            llm.engine.timeline.write(options.trace)


def fitted_to_each(llm: LLM, prompts: Sequence[Text], params: SamplingParams) -> list[SamplingParams]:
    """The parameters of each prompt. Of several, the one that is refused is named by its number."""
    fitting = []
    for number, prompt in enumerate(prompts, 1):
        try:
            fitting.append(fitted(llm, prompt, params))
        except RequestError as error:
            where = error.where if len(prompts) == 1 else f"prompt {number} of {len(prompts)}"
            raise RequestError(where, error.found, error.wanted, error.fix) from None
    return fitting


def show_answers(screen: Screen, llm: LLM, prompts: Sequence[Text], params: Sequence[SamplingParams]) -> None:
    """One answer as it grows; several when the last one is done."""
    if len(prompts) == 1 and params[0].n == 1:
        outputs = [streamed(screen, llm, prompts[0], params[0])]
    else:
        outputs = answered(llm, prompts, params)
        for number, output in enumerate(outputs, 1):
            show_samples(screen, output, number if len(outputs) > 1 else None)
    if params[0].logprobs is not None:
        for output in outputs:
            screen.print(logprob_table(output, params[0].logprobs))
    if screen.is_terminal:
        screen.print(figures(outputs, llm.stats.modes), style="dim", highlight=False)


def answered(llm: LLM, prompts: Sequence[Text], params: Sequence[SamplingParams]) -> list[RequestOutput]:
    """The whole answers, in the order of their prompts; the first error if one failed."""
    if len(prompts) == 1:
        with spinner("generating"):
            outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    else:
        outputs = llm.generate(list(prompts), list(params), use_tqdm=True)
    for output in outputs:
        if output.error is not None:
            raise output.error
    return outputs


def show_samples(screen: Screen, output: RequestOutput, number: int | None) -> None:
    """Every sample under its label: [2] the second of one prompt, [3] the only one of the third, [3.2] its second."""
    for completion in output.outputs:
        sample = completion.index + 1 if len(output.outputs) > 1 else None
        screen.out(f"[{'.'.join(str(one) for one in (number, sample) if one)}]", style="dim", highlight=False)
        if screen.is_terminal and output.prompt is not None:
            screen.out(output.prompt, style="bold", end="", highlight=False)
        screen.show(completion.text)
        screen.out()


def streamed(screen: Screen, llm: LLM, prompt: Text, params: SamplingParams) -> RequestOutput:
    """One sample, shown as it grows."""
    num_shown, output = 0, None
    with spinner("capturing the first graphs") as stop_spinning:
        for output in llm.stream(prompt, params):
            if screen.is_terminal and len(output.outputs[0].token_ids) == 1:
                stop_spinning()  # before the prompt: it clears the line it stands on
                screen.out(output.prompt or "", style="bold", end="", highlight=False)
            text = output.outputs[0].text
            screen.show(text[num_shown:])
            num_shown = len(text)
    screen.out()
    assert output is not None, "a request that was taken ends with an output"
    return output


def figures(outputs: Sequence[RequestOutput], modes: Mapping[str, int]) -> str:
    """The line under the text."""
    rate = tokens_per_s(outputs)
    firsts = [first for output in outputs if (first := time_to_first_token_s(output)) is not None]
    return " · ".join(
        (
            f"{sum(map(num_generated, outputs))} tokens" + (f", {rate:.1f} tokens/s" if rate is not None else ""),
            f"first token after {min(firsts):.2f} s" if firsts else "no first token",
            how_it_ran(modes),
            f"{sum(output.num_cached_tokens for output in outputs)} cached tokens",
        )
    )


def how_it_ran(modes: Mapping[str, int]) -> str:
    """Steps by mode, eager ones with the reason: "1 breakable graph step, 8 full graph steps (2 captured now)"."""
    counts: Counter[str] = Counter()
    num_captured = 0
    for key, count in modes.items():
        mode, reason = key.split(": ", 1)
        counts[f"eager ({reason})" if mode == Mode.EAGER else f"{mode} graph"] += count
        num_captured += count if reason == Reason.CAPTURE_NOW else 0
    steps = "steps: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{steps}, {num_captured} captured on first use" if num_captured else steps


def num_generated(output: RequestOutput) -> int:
    return sum(len(completion.token_ids) for completion in output.outputs)


def time_to_first_token_s(output: RequestOutput) -> float | None:
    """Seconds from the request to its first token, captures included."""
    metrics = output.metrics
    return None if metrics.first_token_s is None else metrics.first_token_s - metrics.arrival_s


def tokens_per_s(outputs: Sequence[RequestOutput]) -> float | None:
    """Tokens of all samples after each one's first, per second; None if there are none."""
    begun = [output.metrics.first_token_s for output in outputs if output.metrics.first_token_s is not None]
    ended = [output.metrics.finished_s for output in outputs if output.metrics.finished_s is not None]
    num_more = sum(num_generated(output) - len(output.outputs) for output in outputs)
    if not begun or not ended or num_more < 1:
        return None
    return num_more / max(max(ended) - min(begun), 1e-9)


def as_record(output: RequestOutput, modes: Mapping[str, int]) -> dict[str, object]:
    """The output with vLLM's names, and the figures."""
    record = asdict(output)
    del record["metrics"]  # readings of a clock that means nothing elsewhere
    return record | {
        "tokens_per_s": tokens_per_s([output]),
        "time_to_first_token_s": time_to_first_token_s(output),
        "steps": dict(modes),
    }


def logprob_table(output: RequestOutput, num_best: int) -> Table:
    """The chosen token of each position, and the best ones if they were asked for."""
    table = Table("sample", "token", "logprob", "best", box=None)
    for completion in output.outputs:
        for entries in completion.logprobs or ():
            chosen, *_ = entries.values()
            ranked = sorted((one.rank, one) for one in entries.values() if one.rank is not None)
            best = "  ".join(f"{one.decoded_token!r} {one.logprob:.2f}" for rank, one in ranked if rank <= num_best)
            text = repr(chosen.decoded_token).replace("[", "\\[")
            table.add_row(str(completion.index + 1), text, f"{chosen.logprob:.3f}", best.replace("[", "\\["))
    return table
