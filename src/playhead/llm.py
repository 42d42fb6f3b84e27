"""`LLM`: a model by name, prompts in, text out.

with LLM("embedded", max_num_seqs=4) as llm:
    print(llm.generate("The whale", SamplingParams(max_tokens=20))[0].outputs[0].text)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from playhead.engine.build import build_engine
from playhead.engine.calls import Calls, Stream
from playhead.engine.config import EMBEDDED, EngineConfig
from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions, as_params, checked_params, joined, split_n
from playhead.engine.progress import prompt_bar
from playhead.errors import RequestError
from playhead.graph.spec import CaptureReport
from playhead.inputs import Prompt, Prompts, as_prompts
from playhead.models.checkpoint.fill import OnProgress
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams

__all__ = ["LLM", "EngineConfig"]


class LLM:
    """A loaded model. Closing it (or leaving its `with`) aborts what still runs.

    Settings are those of `EngineConfig`, as one object or as keywords. `config` has what they became here.
    """

    def __init__(
        self,
        model: str = EMBEDDED,
        config: EngineConfig | None = None,
        *,
        on_load_progress: OnProgress | None = None,
        **settings: Any,
    ) -> None:
        engine = build_engine(model, config, on_load_progress=on_load_progress, **settings)
        self._calls = Calls(engine)
        self.config, self.stats, self.tokenizer = engine.config, engine.stats, engine.tokenizer

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
        """What a request without parameters gets: the checkpoint's generation_config.json over vLLM's defaults."""
        return self.engine.reader.default_params

    def kv_report(self) -> str:
        """The account of KV pages as a table: free, held, cached, in quarantine, and what was ever found wrong."""
        return self._calls.alone(Engine.kv_report)

    def capture_graphs(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture all sizes now; otherwise each is captured when it is first wanted (`Engine.capture_graphs`)."""
        self._calls.alone(lambda engine: engine.capture_graphs(progress))

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """One output per prompt, in their order. Prompts are text or token ids; one prompt may stand alone.

        There may be any number of them: the engine is given more as it has room. `use_tqdm` shows a bar on a terminal.
        A request that fails has its `error` in its output; the others' outputs are whole.
        Without `params` they are sampled as the model's authors say (`get_default_sampling_params`).
        """
        prompt_list = as_prompts(prompts)
        params_list = as_params(self.get_default_sampling_params() if params is None else params, len(prompt_list))
        results: dict[str, RequestOutput] = {}
        names = [self._calls.new_name() for _ in prompt_list]
        pending = [
            (f"{name}.{i}", prompt, one)
            for name, prompt, wanted in zip(names, prompt_list, params_list, strict=True)
            for i, one in enumerate(split_n(wanted))
        ]
        with prompt_bar(len(pending), enabled=use_tqdm) as advance:
            for output in self.outputs_of(pending, RequestOptions(streams=False)):
                results[output.request_id] = output
                advance(output)
        return [
            joined(name, [results[f"{name}.{i}"] for i in range(wanted.n)])
            for name, wanted in zip(names, params_list, strict=True)
        ]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """The output after every token. Leaving the loop early aborts the request."""
        wanted = self.get_default_sampling_params() if params is None else checked_params(params)
        if wanted.n != 1:
            raise RequestError("stream", f"n={wanted.n}", "n=1", "Use generate for several samples.")
        return Stream(self.outputs_of([(self._calls.new_name(), prompt, wanted)], RequestOptions()))

    def chat(self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None) -> RequestOutput:
        """The answer to a conversation, written out by the model's own chat template."""
        output = self.generate([self.chat_prompt(messages)], params)[0]
        if output.error is not None:
            raise output.error
        return output

    def chat_stream(self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None) -> Stream:
        """The same answer after every token. Leaving the loop early aborts the request."""
        return self.stream(self.chat_prompt(messages), params)

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation as the model reads it, up to where its answer begins."""
        return self.engine.reader.chat_prompt(messages)

    def outputs_of(
        self, requests: Sequence[tuple[str, Prompt, SamplingParams]], options: RequestOptions
    ) -> Generator[RequestOutput, None, None]:
        """Every output of these requests, each with a new id, as they come. All are checked before the first runs.

        The engine is given more as it has room. Closing the generator aborts what is left.
        """
        return self._calls.outputs_of(requests, options)
