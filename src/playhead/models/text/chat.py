"""Chat templates: a checkpoint's own program that turns messages into a prompt.

The program is foreign, though an operator chose it with the model; a request can never bring one. It runs in Jinja's
sandbox inside a child process with limits (`template_worker`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from playhead.errors import ChatTemplateError, RequestError
from playhead.models.text.template_worker import TemplateWorker

MAX_SOURCE_CHARS = 1 << 18
MAX_INPUT_BYTES = 1 << 23

Message = Mapping[str, object]


class ChatTemplate:
    """A compiled template. `render` gives the prompt or a `ChatTemplateError`. Templates may share a worker.

    `tokens` are the texts of the model's named tokens (`SpecialTokens.named`), which templates write as variables.
    """

    def __init__(
        self,
        source: str,
        *,
        tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        worker: TemplateWorker | None = None,
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ChatTemplateError(
                f"chat template: found {len(source)} characters; wanted at most {MAX_SOURCE_CHARS}. Use another one."
            )
        self.source, self._now = source, now
        self._tokens = {"bos_token": "", "eos_token": "", **tokens}
        self._worker = worker or TemplateWorker()
        self._worker.ask(_payload({"source": source}))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        """The prompt for these messages. `variables` are the template's own switches, such as `enable_thinking`."""
        if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
            raise RequestError("chat", f"a {type(messages).__name__}", "a list of messages", 'Give [{"role": ...}].')
        values = {
            "documents": None,  # transformers always sets it, and some templates ask whether it is defined
            **self._tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        payload = _payload({"source": self.source, "variables": values, "now": self._now().isoformat()})
        return self._worker.ask(payload)

    def close(self) -> None:
        """End the worker's process. Rendering again starts another."""
        self._worker.close()


def _payload(job: Mapping[str, object]) -> bytes:
    """The job as the worker reads it, or `RequestError`: only JSON can be handed over."""
    try:
        raw = json.dumps(job, ensure_ascii=False, default=_as_dict).encode()
    except UnicodeEncodeError as error:
        found = f"text that is not Unicode ({error.reason})"
        raise RequestError("chat", found, "characters that UTF-8 can write", "Remove lone surrogates.") from None
    except (TypeError, ValueError, RecursionError) as error:
        found = f"messages that JSON cannot write ({error!s:.120})"
        raise RequestError("chat", found, "texts, numbers, lists and tables", "Change the messages.") from None
    if len(raw) > MAX_INPUT_BYTES:
        raise RequestError("chat", f"messages of {len(raw)} bytes", f"at most {MAX_INPUT_BYTES}", "Shorten them.")
    return raw


def _as_dict(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")
