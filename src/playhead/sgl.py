"""SGLang's offline engine: `import playhead.sgl as sgl`, and the rest of a script stays as it is.

llm = sgl.Engine(model_path="embedded", context_length=256)
for output in llm.generate(["The whale", "My lord,"], {"temperature": 0.8, "max_new_tokens": 20}):
    print(output["text"], output["meta_info"]["finish_reason"])
llm.shutdown()

Names, defaults and the shape of the answers are SGLang's. What Playhead does not have is refused by its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, NoReturn, TypedDict, Unpack, overload

from playhead.engine.config import ModelName
from playhead.engine.keywords import EngineKeywords
from playhead.errors import NO_POOLING, AbsentFeature, RequestError, did_you_mean, renamed, shown
from playhead.inputs import REFUSED_KEYWORDS, Prompt, is_number
from playhead.llm import LLM
from playhead.outputs import CompletionOutput, FinishReason, Logprob, RequestOutput
from playhead.sampling_params import DefaultInt, SamplingParams

__all__ = ["Engine"]

MAX_NEW_TOKENS = 128
MAX_ASYNC_CALLS = 64
SAMPLING_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
    **{
        name: name
        for name in (
            *("n", "temperature", "top_p", "top_k", "min_p"),
            *("frequency_penalty", "presence_penalty", "repetition_penalty"),
            *("stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens"),
        )
    },
}
"""SGLang's names of sampling parameters, and vLLM's, which are Playhead's."""
SENT_NAMES = {
    **{own: sent for sent, own in SAMPLING_NAMES.items() if own != sent},
    **dict.fromkeys(("logprobs", "prompt_logprobs"), "top_logprobs_num"),
}
"""The way back, for errors."""
FORMS = {"json_schema": "json", "regex": "regex", "ebnf": "grammar"}
"""SGLang's names of forms that an answer can have, and vLLM's."""
REFUSED_SAMPLING = {
    "structural_tag": "Playhead has no structural tags: write them into ebnf.",
    "stop_regex": "Playhead ends at texts and token ids: use stop or stop_token_ids.",
    "custom_params": "Sampling is part of a captured graph: use logit_bias.",
}
REFUSED_OPTIONS = {
    **dict.fromkeys(("image_data", "audio_data", "video_data"), "Playhead runs the text part of a model."),
    "lora_path": "Playhead has no adapters: merge the adapter into the weights first.",
    "token_ids_logprob": "Logprobs are those of the chosen and of the best tokens: use top_logprobs_num.",
    "custom_logit_processor": "Sampling is part of a captured graph: use logit_bias.",
    "return_hidden_states": "Playhead gives tokens and logprobs, no hidden states.",
    "input_embeds": "A prompt is text or token ids: Playhead takes no embeddings.",
    "rid": "Playhead names requests itself: meta_info has the id.",
    "session_params": "Send the whole prompt: what it shares with an earlier one is not computed again.",
    "priority": REFUSED_KEYWORDS["priority"],
    "data_parallel_rank": REFUSED_KEYWORDS["data_parallel_rank"],
}
LOGPROB_OPTIONS = {
    **dict.fromkeys(("return_logprob", "return_text_in_logprobs"), (bool, "True or False")),
    **dict.fromkeys(("logprob_start_len", "top_logprobs_num"), (int, "an integer")),
}

Answer = dict[str, Any]
Sampling = Mapping[str, Any]
TextBatch = list[str] | tuple[str, ...]


class GenerateOptions(TypedDict, total=False):
    """The other keywords of SGLang's `generate`. Those that ask for something Playhead does not have are refused."""

    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    return_text_in_logprobs: bool
    image_data: object
    audio_data: object
    video_data: object
    lora_path: object
    token_ids_logprob: object
    custom_logit_processor: object
    return_hidden_states: object
    input_embeds: object
    rid: object
    session_params: object
    priority: object
    data_parallel_rank: object


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobOptions:
    """Which logprobs an answer has. SGLang counts the prompt's from `start` on; -1 is none of them."""

    wanted: bool = False
    start: int = -1
    num_best: int = 0
    with_text: bool = False


class Engine:
    """SGLang's offline engine over a Playhead `LLM`. Any thread may call it, and coroutines too."""

    def __init__(self, model_path: ModelName, **settings: Unpack[EngineKeywords]) -> None:
        self._llm = LLM(model_path, **settings)
        self._threads = ThreadPoolExecutor(MAX_ASYNC_CALLS, thread_name_prefix="playhead.sgl")

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Abort whatever still runs and give all memory back. A second call does nothing.

        The threads stay: a coroutine that reads a stream gets its last answer by one of them.
        """
        self._llm.close()

    def flush_cache(self) -> None:
        """Forget the KV of all prompts so far."""
        self._llm.reset_prefix_cache()

    def get_server_info(self) -> dict[str, Any]:
        """The settings as they became on this machine, by SGLang's names where it has some."""
        config = self._llm.config
        return {
            "context_length": config.max_model_len,
            "max_running_requests": config.max_num_seqs,
            "chunked_prefill_size": config.max_num_batched_tokens,
            "page_size": config.page_size,
            "dtype": config.dtype,
            "device": config.device,
        }

    def encode(self, *args: object, **keywords: object) -> NoReturn:
        """Not there: raises `AbsentFeature`."""
        raise AbsentFeature("Engine.encode", NO_POOLING)

    @overload
    def generate(
        self,
        prompt: str,
        sampling_params: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Answer: ...

    @overload
    def generate(
        self,
        prompt: TextBatch,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Answer]: ...

    @overload
    def generate(
        self,
        prompt: str,
        sampling_params: Sampling | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Answer]: ...

    @overload
    def generate(
        self,
        prompt: None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any: ...

    def generate(
        self,
        prompt: str | TextBatch | None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """The answer to a prompt, a list of answers to several, or with `stream` an iterator over a growing answer.

        With n above 1 there are n answers for each prompt, one after the other, in one list.
        """
        prompts, is_batch = prompts_of(prompt, input_ids)
        wanted = logprob_options(options)
        with named_as_sent():
            params = [self._params(one, wanted) for one in sampling_of(sampling_params, len(prompts))]
        if stream:
            if is_batch or params[0].n != 1:
                found = f"{len(prompts)} prompts, n={params[0].n}" if prompts else "no prompt"
                raise RequestError("stream", found, "one prompt and n=1", "Stream each by itself.")
            return growing_answer(self._llm.stream(prompts[0], params[0]), wanted)
        with named_as_sent():
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        for output in outputs:
            if output.error is not None:
                raise output.error
        answers = [answer_of(output, i, wanted) for output in outputs for i in range(len(output.outputs))]
        return answers if is_batch or len(answers) > 1 else answers[0]

    @overload
    async def async_generate(
        self,
        prompt: str,
        sampling_params: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Answer: ...

    @overload
    async def async_generate(
        self,
        prompt: TextBatch,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Answer]: ...

    @overload
    async def async_generate(
        self,
        prompt: str,
        sampling_params: Sampling | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> AsyncIterator[Answer]: ...

    @overload
    async def async_generate(
        self,
        prompt: None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any: ...

    async def async_generate(
        self,
        prompt: str | TextBatch | None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """`generate` for coroutines: calls that are awaited together are served together."""
        loop = asyncio.get_running_loop()
        call: Any = self.generate
        found = await loop.run_in_executor(
            self._threads, lambda: call(prompt, sampling_params, input_ids, stream=stream, **options)
        )
        return self._each(found) if stream else found

    async def _each(self, answers: Iterator[Answer]) -> AsyncIterator[Answer]:
        loop = asyncio.get_running_loop()
        while (answer := await loop.run_in_executor(self._threads, next, answers, None)) is not None:
            yield answer

    def _params(self, sampling: Sampling, wanted: LogprobOptions) -> SamplingParams:
        """SGLang's parameters over the model's own, as `SamplingParams`."""
        given: dict[str, Any] = {"max_tokens": DefaultInt(MAX_NEW_TOKENS)}
        for name, value in sampling.items():
            if name in REFUSED_SAMPLING:
                if value is not None:
                    raise RequestError(f"sampling field {name!r}", shown(value), "", REFUSED_SAMPLING[name])
            elif name == "logit_bias":
                given[name] = bias_of(value)
            elif name in FORMS:
                if value is not None:
                    given["structured_outputs"] = {**given.get("structured_outputs", {}), FORMS[name]: value}
            elif name not in SAMPLING_NAMES:
                known = (*SAMPLING_NAMES, *FORMS)
                fix = did_you_mean(str(name), known, "Leave it out.")
                raise RequestError("sampling_params", f"the key {shown(name)}", f"one of {', '.join(known)}", fix)
            elif value is not None or name == "max_new_tokens":  # whose None is all that the context has room for
                given[SAMPLING_NAMES[name]] = value
        if wanted.wanted:
            given["logprobs"] = wanted.num_best
            given["prompt_logprobs"] = wanted.num_best if wanted.start >= 0 else None
        return replace(self._llm.get_default_sampling_params(), **given)


@contextmanager
def named_as_sent() -> Iterator[None]:
    """Inside, a refusal names sampling fields as SGLang does."""
    try:
        yield
    except RequestError as error:
        if type(error) is not RequestError:
            raise
        raise renamed(error, SENT_NAMES) from None


def growing_answer(outputs: Iterable[RequestOutput], wanted: LogprobOptions) -> Iterator[Answer]:
    """The answer after every output."""
    with named_as_sent():
        for output in outputs:
            yield answer_of(output, 0, wanted)


def bias_of(value: Any) -> Any:
    """A bias by token id. In JSON, from which many tables come, keys are strings."""
    if not isinstance(value, Mapping):
        return value
    return {int(key) if isinstance(key, str) and key.isdecimal() else key: bias for key, bias in value.items()}


def prompts_of(prompt: object, input_ids: object) -> tuple[list[Prompt], bool]:
    """The prompts of a call, and whether they came as a list."""
    if (prompt is None) == (input_ids is None):
        found = "neither of them" if prompt is None else "both"
        raise RequestError("generate", found, "prompt or input_ids", "Give one of the two.")
    given: Any = prompt if input_ids is None else input_ids
    is_text = input_ids is None and isinstance(given, str)
    if not is_text and not isinstance(given, list | tuple):
        raise RequestError("generate", f"a {type(given).__name__}", "a prompt or a list of prompts", "Change it.")
    is_one = is_text or (input_ids is not None and all(map(is_number, given)))
    return ([given], False) if is_one else (list(given), True)


def sampling_of(sampling: object, count: int) -> list[Sampling]:
    """One table of sampling parameters per prompt."""
    tables: list[Any] = [sampling or {}] * count if sampling is None or isinstance(sampling, Mapping) else []
    tables = list(sampling) if isinstance(sampling, list | tuple) else tables
    if len(tables) != count or not all(isinstance(table, Mapping) for table in tables):
        found = f"{len(tables)} tables" if isinstance(sampling, list | tuple) else f"a {type(sampling).__name__}"
        raise RequestError("sampling_params", found, f"one dict, or {count} of them", "Give one per prompt.")
    return tables


def logprob_options(options: Mapping[str, Any]) -> LogprobOptions:
    """What a call says about logprobs; everything else it asks for is refused."""
    known = GenerateOptions.__annotations__
    for name, value in options.items():
        if name not in known:
            fix = did_you_mean(name, known, "Leave it out.")
            raise RequestError("generate", f"the keyword {name!r}", f"one of {', '.join(known)}", fix)
        if name in REFUSED_OPTIONS and value:
            raise RequestError("generate", f"the keyword {name!r}", "", REFUSED_OPTIONS[name])
        kind, meant = LOGPROB_OPTIONS.get(name, (None, ""))
        if kind is not None and value is not None and type(value) is not kind:
            raise RequestError(f"generate, {name}", shown(value), meant, "Give one value, which is for all prompts.")
    start = options.get("logprob_start_len")
    return LogprobOptions(
        wanted=bool(options.get("return_logprob")),
        start=-1 if start is None else start,
        num_best=options.get("top_logprobs_num") or 0,
        with_text=bool(options.get("return_text_in_logprobs")),
    )


def answer_of(output: RequestOutput, index: int, wanted: LogprobOptions) -> Answer:
    """One sample of an output, in SGLang's shape."""
    completion = output.outputs[index]
    metrics = output.metrics
    meta: dict[str, Any] = {
        "id": output.request_id if len(output.outputs) == 1 else f"{output.request_id}.{index}",
        "finish_reason": finish_reason(completion),
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": len(completion.token_ids),
        "cached_tokens": output.num_cached_tokens,
    }
    if metrics.finished_s is not None:
        meta["e2e_latency"] = metrics.finished_s - metrics.arrival_s
    if wanted.wanted:
        meta |= logprobs_of(output, completion, wanted)
    return {"text": completion.text, "output_ids": list(completion.token_ids), "meta_info": meta}


def finish_reason(completion: CompletionOutput) -> dict[str, Any] | None:
    """Why a sample ended: None while it runs. An end token of the model is what was matched, as in SGLang."""
    reason = completion.finish_reason
    if reason is None:
        return None
    if reason is FinishReason.STOP:
        matched = completion.stop_reason if completion.stop_reason is not None else completion.token_ids[-1]
        return {"type": "stop", "matched": matched}
    return {"type": str(reason), "length": len(completion.token_ids)}


def logprobs_of(output: RequestOutput, completion: CompletionOutput, wanted: LogprobOptions) -> dict[str, Any]:
    """(logprob, token id, text) of every token, and those of the best tokens in its place."""
    ids, start = output.prompt_token_ids, wanted.start
    prompt = list(zip(ids, output.prompt_logprobs or (), strict=False))[start:] if start >= 0 else []
    answer = list(zip(completion.token_ids, completion.logprobs or (), strict=False))
    found: dict[str, Any] = {}
    for name, tokens in (("input", prompt), ("output", answer)):
        found[f"{name}_token_logprobs"] = [entry(table, token, wanted) for token, table in tokens]
        if wanted.num_best:
            found[f"{name}_top_logprobs"] = [best(table, wanted) for _, table in tokens]
    return found


def entry(table: Mapping[int, Logprob] | None, token: int, wanted: LogprobOptions) -> tuple[Any, ...]:
    """One token's. The first token of a prompt has no logprob."""
    found = None if table is None else table[token]
    text = found.decoded_token if found is not None and wanted.with_text else None
    return (None if found is None else found.logprob, token, text)


def best(table: Mapping[int, Logprob] | None, wanted: LogprobOptions) -> list[tuple[Any, ...]] | None:
    """The best tokens', the likeliest first."""
    if table is None:
        return None
    ranked = sorted(table, key=lambda token: -table[token].logprob)[: wanted.num_best]
    return [entry(table, token, wanted) for token in ranked]
