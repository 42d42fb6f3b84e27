"""`LLM`: a model by name, prompts in, text out.

with LLM() as llm:
    print(llm.generate("The whale", SamplingParams(max_tokens=20))[0].outputs[0].text)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from types import TracebackType

import torch

from playhead.engine import Engine, EngineStats
from playhead.errors import ConfigError
from playhead.graph.runner import CaptureReport
from playhead.graph.shapes import Mode
from playhead.kv.plan import KVLimits
from playhead.models.gguf_file import GgufFile
from playhead.models.load import ModelDescription, describe_model, load_weights
from playhead.models.text.chat import ChatTemplate
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.models.text.tokenizer import Tokenizer, tokenizer_from_directory
from playhead.outputs import RequestOutput
from playhead.schedule.errors import RequestError
from playhead.schedule.sampling_params import SamplingParams
from playhead.step.worker import Worker, WorkerConfig

EMBEDDED = "embedded"
CPU_KV_BYTES = 1 << 28
KV_SHARE_OF_FREE = 0.8  # the rest of a GPU's free memory is for graphs, activations and the CUDA context

Prompt = str | Sequence[int]
Prompts = str | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What can be set. Sizes left at None follow from the model and the device."""

    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    kv_memory_bytes: int | None = None
    page_size: int = 16
    graph_mode: Mode = Mode.BREAKABLE
    enable_prefix_caching: bool = True


def resolve_device(config: EngineConfig) -> torch.device:
    """The device asked for, or CUDA where there is one."""
    if config.device != "auto":
        try:
            return torch.device(config.device)
        except RuntimeError:
            raise ConfigError(f"device: found {config.device!r}; wanted auto, cpu or cuda[:N]. Choose one.") from None
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU; float32 on a CPU, where half precision is far slower."""
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if config.dtype not in names:
        raise ConfigError(f"dtype: found {config.dtype!r}; wanted auto or one of {', '.join(names)}. Choose one.")
    return names[config.dtype]


def resolve_model_name(model: str) -> str:
    """The embedded model's directory for its name; anything else as it is."""
    return str(files("playhead") / "assets" / "embedded") if model == EMBEDDED else model


def load_tokenizer(description: ModelDescription) -> Tokenizer:
    """From the files beside the weights, or from the GGUF file's own metadata."""
    if description.path.is_dir():
        return tokenizer_from_directory(description.path)
    return tokenizer_from_gguf(GgufFile(description.path).metadata)


def kv_limits(description: ModelDescription, config: EngineConfig) -> KVLimits:
    """What the scheduler promises, with the model's own context where none was asked for."""
    longest = description.spec.max_context_tokens
    context = longest if config.max_model_len is None else config.max_model_len
    if not 1 <= context <= longest:
        raise ConfigError(f"max_model_len: found {context}; wanted 1 to {longest}, what the model has. Lower it.")
    return KVLimits(
        max_context_tokens=context, max_running=config.max_num_seqs, chunk_tokens=config.max_num_batched_tokens
    )


def worker_config(description: ModelDescription, config: EngineConfig, device: torch.device) -> WorkerConfig:
    """Every size, with what was left open filled in."""
    kv_bytes = CPU_KV_BYTES if config.kv_memory_bytes is None else config.kv_memory_bytes
    if config.kv_memory_bytes is None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kv_bytes = int(free * KV_SHARE_OF_FREE)
    return WorkerConfig(
        kv_memory_bytes=kv_bytes,
        limits=kv_limits(description, config),
        page_size=config.page_size,
        token_mode=config.graph_mode,
        prefix_caching=config.enable_prefix_caching,
    )


class LLM:
    """A loaded model. Closing it (or leaving its `with`) aborts what still runs."""

    def __init__(self, model: str = EMBEDDED, config: EngineConfig | None = None) -> None:
        config = config or EngineConfig()
        device = resolve_device(config)
        self.description = describe_model(resolve_model_name(model))
        decoder = load_weights(self.description, dtype=resolve_dtype(config, device), device=device)
        self.tokenizer = load_tokenizer(self.description)
        self.engine = Engine(Worker(decoder, worker_config(self.description, config, device)), self.tokenizer)
        self._num_calls = 0
        # Whoever steps the engine steps it for all: outputs wait here for the caller that asked for them.
        self._inboxes: dict[str, deque[RequestOutput]] = {}

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort whatever still runs."""
        for request_id in sorted(self._inboxes):
            self.engine.abort(request_id)
        self._inboxes.clear()

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats

    def capture_graphs(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture all sizes now; otherwise each is captured when it is first wanted."""
        self.engine.worker.capture_all(progress)

    def generate(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """One output per prompt, in their order. Prompts are text or token ids; one prompt may stand alone."""
        prompt_list = as_prompts(prompts)
        params_list = as_params(params, len(prompt_list))
        results: dict[str, RequestOutput] = {}
        names = [self._name() for _ in prompt_list]
        pending = [
            (f"{name}.{i}", prompt, one)
            for name, prompt, wanted in zip(names, prompt_list, params_list, strict=True)
            for i, one in enumerate(split_n(wanted))
        ]
        for output in self._run(pending):
            if output.finished:
                results[output.request_id] = output
        return [
            gathered(name, [results[f"{name}.{i}"] for i in range(wanted.n)])
            for name, wanted in zip(names, params_list, strict=True)
        ]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """The output after every token. Leaving the loop early aborts the request."""
        wanted = params or SamplingParams()
        if wanted.n != 1:
            raise RequestError("stream", f"n={wanted.n}", "n=1", "Use generate for several samples.")
        return self._run([(self._name(), prompt, wanted)])

    def chat(self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None) -> RequestOutput:
        """The answer to a conversation, written out by the model's own chat template."""
        if self.tokenizer.chat_template is None:
            raise RequestError("chat", "a model without a chat template", "one that has one", "Use generate.")
        special = self.tokenizer.special
        template = ChatTemplate(self.tokenizer.chat_template, bos=special.bos, eos=special.eos)
        text = template.render(list(messages), add_generation_prompt=True)
        return self.generate([self.tokenizer.encode(text, add_special_tokens=False)], params)[0]

    def _name(self) -> str:
        self._num_calls += 1
        return f"r{self._num_calls}"

    def _run(self, pending: list[tuple[str, Prompt, SamplingParams]]) -> Iterator[RequestOutput]:
        """Feed the engine as it has room and give every output of these requests. All are checked before the first."""
        checked = [(request_id, self.engine.check_request(prompt, params)) for request_id, prompt, params in pending]
        waiting, mine = deque(checked), deque[str]()
        try:
            while waiting or mine:
                while waiting and self.engine.can_take:
                    request_id, prompt = waiting.popleft()
                    self.engine.submit(request_id, prompt)
                    self._inboxes[request_id] = deque()
                    mine.append(request_id)
                if not any(self._inboxes[request_id] for request_id in mine):
                    self._step()
                for request_id in list(mine):
                    while self._inboxes[request_id]:
                        output = self._inboxes[request_id].popleft()
                        if output.finished:
                            mine.remove(request_id)
                        yield output
                    if request_id not in mine:
                        del self._inboxes[request_id]
        finally:
            for request_id in mine:
                self.engine.abort(request_id)
                self._inboxes.pop(request_id, None)

    def _step(self) -> None:
        """One step of the engine, its outputs to whoever waits for them."""
        for output in self.engine.step():
            if output.request_id in self._inboxes:
                self._inboxes[output.request_id].append(output)


def as_prompts(prompts: Prompts) -> list[Prompt]:
    """A list of prompts, whether one or many were given, as text or as ids. The engine checks each one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        found = f"a {type(prompts).__name__}"
        raise RequestError("prompts", found, "text or ids, one or a list of them", "Put it into a list.")
    numbers = [item for item in prompts if isinstance(item, int)]
    if numbers and len(numbers) < len(prompts):
        found = "ids and whole prompts in one list"
        raise RequestError("prompts", found, "one prompt of ids, or many prompts", "Put the ids into a list.")
    return [numbers] if numbers else [item for item in prompts if not isinstance(item, int)]


def as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One set of parameters per prompt."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError("generate", f"{len(params)} sets of parameters", f"one, or {count}", "Give one per prompt.")
    return list(params)


def split_n(params: SamplingParams) -> list[SamplingParams]:
    """One set per sample. With a seed, sample i has the seed plus i, around the end of 64 bits if need be."""
    seeds = [None if params.seed is None else (params.seed + i + 2**63) % 2**64 - 2**63 for i in range(params.n)]
    return [replace(params, n=1, seed=seed) for seed in seeds]


def gathered(request_id: str, samples: Sequence[RequestOutput]) -> RequestOutput:
    """The samples of one request as one output."""
    completions = tuple(replace(output.outputs[0], index=i) for i, output in enumerate(samples))
    return replace(samples[0], request_id=request_id, outputs=completions)
