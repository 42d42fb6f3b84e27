"""What callers send and get, as an engine takes and gives it: the part that `LLM` and `AsyncEngine` share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from playhead.engine.bad_words import bad_word_ids
from playhead.engine.conversations import ChatOptions, Conversation, plain_messages, up_to_mark, with_mark
from playhead.errors import PlayheadError, RequestError, shown
from playhead.grammar.compiler import Grammar, GrammarCompiler, Vocabulary
from playhead.inputs import Prompt, plain_prompt
from playhead.models.text.chat import ChatTemplate
from playhead.models.text.template_worker import TemplateWorker
from playhead.models.text.tokenizer import LONG_CHARS, Tokenizer
from playhead.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from playhead.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPrompt:
    """A prompt that fits the model: its ids, its text if it came as text, and how many tokens may follow it.

    `bad_words` has the token ids of what must not follow. Prompts of another `salt` share no cached prefix.
    """

    text: str | None
    ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    salt: str = ""
    grammar: Grammar | None = None
    """The compiled form of the answer. It stays in its process: another one compiles it again from `params`."""
    ending_ids: frozenset[int] | None = None
    """The ids that end the answer, if another process checked the prompt; None if the engine's own reader did."""
    late_ids: frozenset[int] | None = None
    """The ids that cannot come out before `min_tokens`, in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How a request is to be treated. Lower `priority` goes first. Prompts of another `salt` share no cached prefix.

    With `streams` there is an output after every token; without, only one at the end. `resume_from` has what each
    sample has already from an earlier run; with none, the request begins with its prompt.
    """

    priority: int = 0
    salt: str = ""
    streams: bool = True
    resume_from: tuple[CompletionOutput, ...] = ()

    def __post_init__(self) -> None:
        kinds = (("priority", self.priority, int, "an int"), ("salt", self.salt, str, "a str"))
        for name, value, kind, wanted in kinds:
            if type(value) is not kind:  # bool is no priority
                raise RequestError(name, f"a {type(value).__name__}", wanted, "Change it or leave it out.")
        outputs: tuple[object, ...] = self.resume_from
        for one in outputs:
            if not isinstance(one, CompletionOutput):
                wanted = "the outputs of a RequestOutput"
                raise RequestError("resume_from", f"a {type(one).__name__}", wanted, "Give output.outputs.")

    def of_samples(self, count: int) -> list[RequestOptions]:
        """The options of each of a request's samples, or `RequestError` if these do not resume all of them."""
        outputs = self.resume_from
        if not outputs:
            return [self] * count
        if [output.index for output in outputs] != list(range(count)):
            found = f"samples {[output.index for output in outputs]}"
            raise RequestError("resume_from", found, f"all {count}, in order", "Give every sample's output.")
        return [replace(self, resume_from=(replace(output, index=0),)) for output in outputs]


class ChatIds(list[int]):
    """The ids of a conversation. `stops` end its answer: the model's format has no token for the end of a turn."""

    def __init__(self, ids: Sequence[int], *, stops: tuple[str, ...]) -> None:
        super().__init__(ids)
        self.stops = stops


@dataclass(slots=True, kw_only=True)  # mutable: the chat template is compiled when it is first wanted
class PromptReader:
    """Makes checked token ids of a prompt or a conversation. `default_params` are those of the model's authors."""

    tokenizer: Tokenizer
    vocab_size: int
    max_context: int
    default_params: SamplingParams
    _template: ChatTemplate | None = None
    _templates: TemplateWorker | None = None
    grammars: GrammarCompiler = field(init=False)

    def __post_init__(self) -> None:
        tokenizer, vocab_size = self.tokenizer, self.vocab_size
        self.grammars = GrammarCompiler(lambda: grammar_vocabulary(tokenizer.for_grammars(), vocab_size))

    async def read(self, prompt: Prompt, params: SamplingParams) -> CheckedPrompt:
        """The result of `check`. Long texts and grammars are checked in a thread beside the event loop."""
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        is_long = isinstance(text, str) and len(text) > LONG_CHARS
        if is_long or params.structured_outputs is not None:  # a grammar may have to be compiled
            return await asyncio.to_thread(self.check, prompt, params)
        return self.check(prompt, params)

    def check(self, prompt: Prompt, params: SamplingParams) -> CheckedPrompt:
        """The prompt as the engine takes it, or `RequestError`.

        With `structured_outputs` this may compile a grammar: milliseconds, and seconds the first time.
        """
        form = params.structured_outputs
        # A form says itself where its answer ends, and may have the end of a turn inside.
        if isinstance(prompt, ChatIds) and prompt.stops and not params.ignore_eos and form is None:
            params = replace(params, stop=(*(params.stop or ()), *prompt.stops))
        if params.stop and not self.tokenizer.has_text:
            found, fix = "text, for a model without a tokenizer", "Give stop_token_ids, or load the tokenizer."
            raise RequestError("sampling field 'stop'", found, "token ids", fix)
        plain = plain_prompt(prompt)
        ids = plain.ids
        if ids is None:
            assert plain.text is not None, "a prompt has ids or a text"
            text, most = plain.text, self.max_context
            is_cut = params.truncate_prompt_tokens is not None
            if is_cut:  # it may be far longer than the context
                text = self.tokenizer.ending(text, params.num_prompt_tokens(most, most))
            ids = self.tokenizer.encode(text, add_special_tokens=True, max_context=None if is_cut else most)
        ids = ids[len(ids) - params.num_prompt_tokens(len(ids), self.max_context) :]
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            outside = next(token for token in ids if not 0 <= token < self.vocab_size)
            wanted = f"ids in [0, {self.vocab_size})"
            raise RequestError("prompt", f"token id {shown(outside)}", wanted, "Check the tokenizer.")
        max_new_tokens = params.check_against(self.vocab_size, len(ids), self.max_context)
        return CheckedPrompt(
            text=plain.text,
            ids=tuple(ids),
            params=params,
            max_new_tokens=max_new_tokens,
            bad_words=bad_word_ids(params.bad_words, self.tokenizer) if params.bad_words else (),
            salt=plain.salt,
            grammar=None if form is None else self.grammars.compile(form),
        )

    def ending_ids(self, params: SamplingParams) -> frozenset[int]:
        """The token ids that end a request with these parameters."""
        eos: frozenset[int] = frozenset() if params.ignore_eos else self.tokenizer.special.eos_ids
        return eos | frozenset(params.stop_token_ids or ())

    def late_ids(self, params: SamplingParams) -> frozenset[int]:
        """The token ids that cannot come out before `min_tokens`: the model's end waits where it is ignored too."""
        if not params.min_tokens:
            return frozenset()
        return self.tokenizer.special.eos_ids | frozenset(params.stop_token_ids or ())

    def chat_prompt(self, messages: Conversation, options: ChatOptions | None = None) -> list[int]:
        """A conversation as the model reads it, up to where its answer begins."""
        options = options or ChatOptions()
        text = self.chat_text(messages, options)
        ids = self.tokenizer.encode(text, add_special_tokens=False, max_context=self.max_context)
        return ChatIds(ids, stops=self.tokenizer.chat_stops if options.chat_template is None else ())

    def chat_text(self, messages: Conversation, options: ChatOptions) -> str:
        """A conversation as its chat template writes it."""
        plain = plain_messages(messages)
        text = self._template_of(options).render(
            with_mark(plain) if options.continue_final_message else plain,
            add_generation_prompt=options.add_generation_prompt,
            tools=options.tools,
            **options.chat_template_kwargs,
        )
        return up_to_mark(text) if options.continue_final_message else text

    def _template_of(self, options: ChatOptions) -> ChatTemplate:
        """The template that is asked for, or the model's own: with tools, its own for tools. All share one process."""
        source = options.chat_template
        if source is None and options.tools is not None:
            source = self.tokenizer.tool_template
        source = self.tokenizer.chat_template if source is None else source
        if source is None:
            raise RequestError(
                "chat", "a model without a chat template", "one that has one", "Use generate, or give chat_template."
            )
        template = self._template  # another thread may exchange it for its own
        if template is None or template.source != source:
            special = self.tokenizer.special
            worker = self._templates = self._templates or TemplateWorker()
            template = self._template = ChatTemplate(source, tokens=special.named, worker=worker)
        return template

    def close(self) -> None:
        """End the chat template's process, if it has one."""
        if self._templates is not None:
            self._templates.close()


def grammar_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """A model's tokens as grammars read them. Ids beyond the tokenizer's have no text."""
    return Vocabulary(
        token_bytes=[tokenizer.token_bytes(token) or b"" for token in range(vocab_size)],
        eos_ids=tokenizer.special.eos_ids,
        special_ids=frozenset(token for token in tokenizer.special.special_ids if token < vocab_size),
        encode=partial(tokenizer.encode, add_special_tokens=False),
    )


def as_params(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """One set of parameters per prompt."""
    if isinstance(params, SamplingParams):
        return [checked_params(params)] * count
    if not isinstance(params, Sequence) or len(params) != count:
        found = f"{len(params)} sets of parameters" if isinstance(params, Sequence) else f"a {type(params).__name__}"
        raise RequestError("sampling_params", found, f"one SamplingParams, or {count}", "Give one per prompt.")
    copies = {id(one): checked_params(one) for one in params}
    return [copies[id(one)] for one in params]


def checked_params(params: object) -> SamplingParams:
    """A copy of the parameters, checked anew, or `RequestError`: their fields may have been set, and may be set again.

    A dict would be taken for them and fail in the middle of a step.
    """
    if not isinstance(params, SamplingParams):
        raise RequestError("sampling_params", f"a {type(params).__name__}", "SamplingParams", "Make it one.")
    return params.clone()


def split_n(params: SamplingParams) -> list[SamplingParams]:
    """One set per sample. With a seed, sample i has the seed plus i, around the end of 64 bits if need be."""
    if params.n == 1:
        return [params]
    seeds = [None if params.seed is None else (params.seed + i + 2**63) % 2**64 - 2**63 for i in range(params.n)]
    return [replace(params, n=1, seed=seed) for seed in seeds]


def joined(request_id: str, samples: Sequence[RequestOutput | None]) -> RequestOutput:
    """The samples of one request as one output, as far as they have begun. It is finished when all of them are."""
    if len(samples) == 1 and samples[0] is not None:
        lone = samples[0]
        return lone if lone.request_id == request_id else replace(lone, request_id=request_id)
    begun = [(i, output) for i, output in enumerate(samples) if output is not None]
    metrics = [output.metrics for _, output in begun]
    firsts = [metric.first_token_s for metric in metrics if metric.first_token_s is not None]
    ends = [metric.finished_s for metric in metrics if metric.finished_s is not None]
    finished = len(begun) == len(samples) and all(output.finished for _, output in begun)
    return replace(
        begun[0][1],
        request_id=request_id,
        outputs=[replace(output.outputs[0], index=i) for i, output in begun],
        finished=finished,
        error=next((output.error for _, output in begun if output.error is not None), None),
        metrics=RequestMetrics(
            arrival_s=min(metric.arrival_s for metric in metrics),
            first_token_s=min(firsts, default=None),
            finished_s=max(ends) if finished else None,
        ),
    )


def never_queued(request_id: str, checked: CheckedPrompt, error: PlayheadError) -> RequestOutput:
    """The only output of a request that the engine refused to queue."""
    nothing = CompletionOutput(index=0, text="", token_ids=[], finish_reason=FinishReason.ERROR)
    now_s = time.perf_counter()
    return RequestOutput(
        request_id=request_id,
        prompt=checked.text,
        prompt_token_ids=list(checked.ids),
        outputs=[nothing],
        finished=True,
        metrics=RequestMetrics(arrival_s=now_s, finished_s=now_s),
        error=error,
    )
