"""Chat templates: a checkpoint's own program that turns messages into a prompt.

The program is foreign, though an operator chose it with the model; a request can never bring one. It runs in Jinja's
immutable sandbox (no private attributes, no changes to what it is given) with bounds on its source, on products, powers
and sums, on the ranges it counts through, and on what it writes. Padding filters and `~` are not bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from playhead.models.errors import ChatTemplateError

MAX_SOURCE_CHARS = 1 << 18
MAX_OUTPUT_CHARS = 1 << 23
MAX_RANGE_ITEMS = 100_000
"""In all ranges of one rendering together; nested ranges multiply otherwise."""

MAX_EXPONENT = 64

Message = Mapping[str, object]


class ChatTemplate:
    """A compiled template. `render` gives the prompt or a `ChatTemplateError`."""

    def __init__(
        self, source: str, *, bos: str | None, eos: str | None, now: Callable[[], datetime] = datetime.now
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ChatTemplateError(
                f"chat template: found {len(source)} characters; wanted at most {MAX_SOURCE_CHARS}. Use another one."
            )
        self._tokens = {"bos_token": bos or "", "eos_token": eos or ""}
        self._now = now
        try:
            self._template = _BoundedEnvironment().from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat template: {error}; wanted one Jinja can read. Use another one.") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        """The prompt for these messages. `variables` are the template's own switches, such as `enable_thinking`."""
        values = {
            **variables,
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: self._now().strftime(form),
            "range": _RangeBudget(MAX_RANGE_ITEMS).range,
        }
        parts, num_chars = [], 0
        try:
            for part in self._template.generate(values):
                num_chars += len(part)
                if num_chars > MAX_OUTPUT_CHARS:
                    raise SecurityError(f"more than {MAX_OUTPUT_CHARS} characters written")
                parts.append(part)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
            raise ChatTemplateError(
                f"chat template: {error}; wanted messages it accepts. Check their roles, order and contents."
            ) from None
        return "".join(parts)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _RangeBudget:
    """`range` that counts what all its calls may give out together."""

    def __init__(self, num_items: int) -> None:
        self._left = num_items

    def range(self, *bounds: int) -> range:
        items = range(*bounds)
        # Counted without len(), which overflows beyond 64 bits.
        self._left -= sum(1 for _ in islice(items, self._left + 1))
        if self._left < 0:
            raise SecurityError(f"ranges of more than {MAX_RANGE_ITEMS} items in all")
        return items


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; for a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012  Jinja reads it from the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with products and powers kept small: 'a' * 10**12 is one short expression."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.Undefined,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.filters["tojson"] = _tojson

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refused at once: as an undefined value it would print as nothing and go unnoticed."""
        raise SecurityError(f"access to {attribute!r:.80}")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int | float) and abs(right) > MAX_EXPONENT:
            raise SecurityError(f"a power above {MAX_EXPONENT}")
        if operator in "*+" and _num_items(operator, left, right) > MAX_OUTPUT_CHARS:
            raise SecurityError(f"a text or list of more than {MAX_OUTPUT_CHARS} items")
        return super().call_binop(context, operator, left, right)


def _num_items(operator: str, left: object, right: object) -> int:
    """How long `left operator right` would be, if it is a text or a list."""
    sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
    if operator == "+":
        return sum(sizes)
    times = [side for side in (left, right) if isinstance(side, int)]
    return sizes[0] * times[0] if sizes and times else 0


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: Jinja's own filter escapes <, > and & for web pages, which would change the prompt."""
    allowed = {key: options[key] for key in ("separators", "sort_keys") if key in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **allowed)
