"""A backend whose answers are known beforehand: routes can be tried with texts that no small model would write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import playhead
from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions
from playhead.engine.snapshot import EngineSnapshot
from playhead.engine.timeline import EngineStats
from playhead.errors import QueueFull
from playhead.models.text.tokenizer import Tokenizer, tokenizer_from_directory
from playhead.outputs import CompletionOutput, FinishReason, Logprob, RequestOutput
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve.backend import BackendScrape, BackendState, ModelFacts

CONTEXT = 4096


@cache
def embedded_tokenizer() -> Tokenizer:
    """The tokenizer of the embedded model, without the model."""
    assert playhead.__file__ is not None, "the package is a directory"
    return tokenizer_from_directory(Path(playhead.__file__).parent / "assets" / "embedded")


@cache
def embedded_reader() -> PromptReader:
    """Reads prompts as the embedded model does. One for all: its chat template has a process of its own."""
    tokenizer = embedded_tokenizer()
    return PromptReader(
        tokenizer=tokenizer,
        vocab_size=tokenizer.vocab_size,
        max_context=CONTEXT,
        default_params=SamplingParams(),
    )


def logprob_of(token_id: int) -> dict[int, Logprob]:
    """The report of a token that was certain."""
    return {token_id: Logprob(logprob=0.0, rank=1, decoded_token=embedded_tokenizer().token_text(token_id))}


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it is closed
class ScriptedStream:
    """One answer, piece by piece, or whole at its end; then `error`, if there is one."""

    outputs: Sequence[RequestOutput]
    error: Exception | None = None
    is_closed: bool = False

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        for output in self.outputs:
            yield output
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.is_closed = True


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it keeps what was submitted
class ScriptedBackend:
    """Every sample of every request gets `pieces`, one token each. With `error` the last output never comes.

    `room` requests are taken, and the next is refused. `token_ids` has one id for each piece; without them all are 0.
    """

    pieces: Sequence[str] = ("Ay", ", sir", ".")
    finish: FinishReason = FinishReason.STOP
    error: Exception | None = None
    token_ids: Sequence[int] = ()
    num_cached_tokens: int = 0
    room: int = 1 << 30
    has_chat_template: bool = True
    submitted: list[CheckedPrompt] = field(default_factory=list)
    options: list[RequestOptions] = field(default_factory=list)
    streams: list[ScriptedStream] = field(default_factory=list)
    max_sequences: int = 1 << 30
    retry_after_s: int = 7
    num_restarts: int = 0

    @property
    def state(self) -> BackendState:
        return BackendState.READY

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            name="scripted",
            max_model_len=CONTEXT,
            vocab_size=embedded_tokenizer().vocab_size,
            has_chat_template=self.has_chat_template,
            default_params=SamplingParams(),
            max_running=4,
            device="cpu",
            dtype="float32",
            fingerprint="fp_scripted",
        )

    @property
    def reader(self) -> PromptReader:
        return embedded_reader()

    async def start(self) -> None:
        """Nothing is loaded."""

    def check_room(self) -> None:
        if len(self.submitted) >= self.room:
            raise QueueFull("queue", f"{self.room} requests", "fewer", "Try again later.")

    def submit(self, request_id: str, checked: CheckedPrompt, options: RequestOptions) -> ScriptedStream:
        self.check_room()
        self.submitted.append(checked)
        self.options.append(options)
        stream = ScriptedStream(outputs=self._outputs(request_id, checked), error=self.error)
        self.streams.append(stream)
        return stream

    def _outputs(self, request_id: str, checked: CheckedPrompt) -> list[RequestOutput]:
        """One output per piece, or one with all of them. A sample that has ended stays in the outputs, as empty."""
        num_samples, last = checked.params.n, len(self.pieces) - 1
        ids = list(self.token_ids) or [0] * len(self.pieces)
        tables = None if checked.params.logprobs is None else [logprob_of(one) for one in ids]
        outputs = []
        for i, piece in enumerate(self.pieces):
            finish = self.finish if i == last and self.error is None else None
            samples = [
                CompletionOutput(
                    index=index,
                    text=piece,
                    token_ids=ids[i : i + 1],
                    finish_reason=finish,
                    logprobs=None if tables is None else tables[i : i + 1],
                )
                for index in range(num_samples)
            ]
            outputs.append(
                RequestOutput(
                    request_id=request_id,
                    prompt=checked.text,
                    prompt_token_ids=list(checked.ids),
                    outputs=samples,
                    finished=finish is not None,
                    num_cached_tokens=self.num_cached_tokens,
                )
            )
        if checked.params.output_kind is RequestOutputKind.FINAL_ONLY:
            whole = "".join(self.pieces)
            many = [replace(one, text=whole, token_ids=ids, logprobs=tables) for one in outputs[-1].outputs]
            return [replace(outputs[-1], outputs=many)] if self.error is None else []
        return outputs

    async def snapshot(self, *, after_step: int = 0) -> EngineSnapshot:
        return EngineSnapshot(stats=EngineStats(), num_running=0, num_waiting=0, max_running=4)

    async def scrape(self) -> BackendScrape:
        return BackendScrape(snapshots={"": await self.snapshot()})

    async def close(self) -> None:
        """Nothing was loaded."""
