"""`LLM`: a model by name, prompts in, text out.

with LLM("embedded", max_num_seqs=4) as llm:
    print(llm.generate("The whale", SamplingParams(max_tokens=20))[0].outputs[0].text)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import NoReturn, Unpack

from playhead.engine.build import build_engine
from playhead.engine.calls import Calls, Stream
from playhead.engine.config import EMBEDDED, EngineConfig, ModelName
from playhead.engine.conversations import ChatKeywords, Conversation, Conversations, as_conversations, chat_options
from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions, as_params, checked_params, joined, split_n
from playhead.engine.keywords import EngineKeywords
from playhead.engine.output_kind import OutputView
from playhead.engine.progress import MakeBar, prompt_bar
from playhead.engine.user_tokenizer import UserTokenizer
from playhead.errors import NO_POOLING, AbsentFeature, RequestError
from playhead.graph.spec import CaptureReport
from playhead.inputs import GenerateKeywords, Prompt, Prompts, as_prompts, refuse_keywords
from playhead.models.checkpoint.fill import OnProgress
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams

__all__ = ["LLM", "EngineConfig"]

ONLY_AT_THE_END = RequestOptions(streams=False)


class LLM:
    """A loaded model. Closing it (or leaving its `with`) aborts what still runs.

    Settings are those of `EngineConfig`, as one object or as keywords. `config` has the values in use. Several
    threads may call one LLM: their requests run together.

    >>> with LLM("embedded", max_model_len=128, max_num_seqs=4) as llm:
    ...     outputs = llm.generate("The whale", SamplingParams(temperature=0, max_tokens=8))
    >>> len(outputs[0].outputs[0].token_ids)
    8
    >>> llm
    LLM('embedded', cpu, float32, context 128, closed)
    """

    def __init__(
        self,
        model: ModelName = EMBEDDED,
        config: EngineConfig | None = None,
        *,
        on_load_progress: OnProgress | None = None,
        **settings: Unpack[EngineKeywords],
    ) -> None:
        engine = build_engine(model, config, on_load_progress=on_load_progress, **settings)
        self._calls = Calls(engine)
        self.config, self.stats, self.tokenizer = engine.config, engine.stats, engine.tokenizer

    def __repr__(self) -> str:
        return f"LLM({self._calls.description})"

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort whatever still runs and give all memory back. A second call does nothing.

        An open stream gets what it has so far, as its last output. A `generate` of another thread raises `MisuseError`.
        """
        self._calls.close()

    @property
    def engine(self) -> Engine:
        """The engine underneath, while this LLM is open."""
        return self._calls.engine

    @property
    def is_busy(self) -> bool:
        """Whether a call to generate or a stream is under way."""
        return self._calls.is_busy

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: the checkpoint's generation_config.json over vLLM's defaults.

        The object is yours: set fields of it and give it to a call.
        """
        return self.engine.reader.default_params.clone()

    def get_tokenizer(self) -> UserTokenizer:
        """The model's tokenizer, with the methods that users of transformers know: `encode`, `decode` and others."""
        return UserTokenizer(self.engine.reader)

    def reset_prefix_cache(self) -> bool:
        """Forget the KV of all prompts so far. Requests that run keep theirs. True, as in vLLM, when it is done."""
        self._calls.alone(Engine.reset_prefix_cache)
        return True

    def kv_report(self) -> str:
        """The account of KV pages as a table: free, held, cached, in quarantine, and what was ever found wrong."""
        return self._calls.alone(Engine.kv_report)

    def capture_graphs(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture all sizes now; otherwise each is captured when it is first wanted (`Engine.capture_graphs`)."""
        self._calls.alone(lambda engine: engine.capture_graphs(progress))

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | MakeBar = True,
        **others: Unpack[GenerateKeywords],
    ) -> list[RequestOutput]:
        """One output per prompt, in their order. One prompt may stand alone.

        >>> outputs = llm.generate(["The whale", {"prompt_token_ids": [12, 57]}], SamplingParams(max_tokens=4))
        >>> [output.prompt for output in outputs]
        ['The whale', None]

        A prompt is text, token ids (a list, numpy's or torch's), or a dict of vLLM's (`playhead.inputs`). There may be
        any number of them: the engine is given more as it has room. `use_tqdm` shows a bar on a terminal and in a
        notebook; a function makes the bar as `tqdm` does.
        A request that fails has its `error` in its output; the others' outputs are whole.
        Without `sampling_params` they are sampled as the model's authors say (`get_default_sampling_params`).
        """
        refuse_keywords(others)
        prompt_list = as_prompts(prompts)
        wanted_by_all = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params_list = as_params(wanted_by_all, len(prompt_list))
        results: dict[str, RequestOutput] = {}
        names = [self._calls.new_name() for _ in prompt_list]
        pending = [
            (sample_name(name, i, wanted), prompt, one)
            for name, prompt, wanted in zip(names, prompt_list, params_list, strict=True)
            for i, one in enumerate(split_n(wanted))
        ]
        with prompt_bar(len(pending), enabled=use_tqdm) as advance:
            for output in self.outputs_of(pending, ONLY_AT_THE_END):
                results[output.request_id] = output
                advance(output)
        return [
            joined(name, [results[sample_name(name, i, wanted)] for i in range(wanted.n)])
            for name, wanted in zip(names, params_list, strict=True)
        ]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Stream:
        """The output after every token. Leaving the loop early aborts the request.

        >>> params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        >>> [len(output.outputs[0].token_ids) for output in llm.stream("The whale", params)]
        [1, 2, 3]
        """
        wanted = self.get_default_sampling_params() if sampling_params is None else checked_params(sampling_params)
        if wanted.n != 1:
            raise RequestError("stream", f"n={wanted.n}", "n=1", "Use generate for several samples.")
        view = OutputView(wanted.output_kind)
        options = RequestOptions(streams=view.shows_all)
        return Stream(self.outputs_of([(self._calls.new_name(), prompt, wanted)], options), view)

    def chat(
        self,
        messages: Conversations,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
        **options: Unpack[ChatKeywords],
    ) -> list[RequestOutput]:
        """The answers to one conversation or to many, in their order, each written out by the chat template.

        >>> messages = [{"role": "user", "content": "Call me Ishmael."}]
        >>> llm.chat(messages, SamplingParams(max_tokens=8))[0].finished
        True

        `options` are those of `ChatOptions`: `tools`, `chat_template`, `continue_final_message` and others.
        """
        wanted = chat_options(options)
        prompts = [self.engine.reader.chat_prompt(one, wanted) for one in as_conversations(messages)]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def chat_stream(self, messages: Conversation, sampling_params: SamplingParams | None = None) -> Stream:
        """The answer to a conversation, after every token. Leaving the loop early aborts the request."""
        return self.stream(self.chat_prompt(messages), sampling_params)

    def chat_prompt(self, messages: Conversation) -> list[int]:
        """A conversation as the model reads it, up to where its answer begins."""
        return self.engine.reader.chat_prompt(messages)

    def outputs_of(
        self, requests: Sequence[tuple[str, Prompt, SamplingParams]], options: RequestOptions
    ) -> Generator[RequestOutput, None, None]:
        """Every output of these requests, each with a new id, as they come. All are checked before the first output.

        The engine is given more as it has room. Closing the generator aborts what is left.
        """
        return self._calls.outputs_of(requests, options)

    # Methods of vLLM that Playhead does not have. Each raises with the reason; a missing name would give none.

    def beam_search(self, *args: object, **keywords: object) -> NoReturn:
        """Not there: raises `AbsentFeature`."""
        raise AbsentFeature(
            "LLM.beam_search", "Playhead has no beam search: SamplingParams(n=...) draws several samples."
        )

    def encode(self, *args: object, **keywords: object) -> NoReturn:
        """Not there: raises `AbsentFeature`."""
        raise AbsentFeature("LLM.encode", f"{NO_POOLING} Token ids of a text: llm.get_tokenizer().encode(text).")

    def embed(self, *args: object, **keywords: object) -> NoReturn:
        """Not there: raises `AbsentFeature`."""
        raise AbsentFeature("LLM.embed", NO_POOLING)

    def classify(self, *args: object, **keywords: object) -> NoReturn:
        """Not there: raises `AbsentFeature`."""
        raise AbsentFeature("LLM.classify", f"{NO_POOLING} Classes that are tokens: generate with logprobs.")

    def score(self, *args: object, **keywords: object) -> NoReturn:
        """Not there: raises `AbsentFeature`."""
        raise AbsentFeature("LLM.score", f"{NO_POOLING} The score of a text: generate with prompt_logprobs=0.")


def sample_name(name: str, index: int, wanted: SamplingParams) -> str:
    """The engine's name for one sample of a request. A lone sample has the request's own."""
    return name if wanted.n == 1 else f"{name}.{index}"
