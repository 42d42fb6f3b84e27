"""Jinja, fenced in: what a chat template can reach and how much it may make. Runs in a process of its own.

The sandbox is immutable (no private attributes, no changes to what it is given) and bounds products, powers, sums,
ranges and what is written. It cannot bound everything: a filter that pads, a number that grows, a loop without a range.
The limits of the process (`template_child`) bound the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT_CHARS = 1 << 23
MAX_RANGE_ITEMS = 100_000
"""In all ranges of one rendering together; nested ranges multiply otherwise."""

MAX_EXPONENT = 64


def compile_template(source: str) -> jinja2.Template:
    return _BoundedEnvironment().from_string(source)


def render(template: jinja2.Template, variables: Mapping[str, Any], now: datetime) -> str:
    """What the template makes of its variables, as long as it is not too much."""
    values = {
        **variables,
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: now.strftime(form),
        "range": _RangeBudget(MAX_RANGE_ITEMS).range,
    }
    parts, num_chars = [], 0
    for part in template.generate(values):
        num_chars += len(part)
        if num_chars > MAX_OUTPUT_CHARS:
            raise SecurityError(f"more than {MAX_OUTPUT_CHARS} characters written")
        parts.append(part)
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
    sizes = [len(side) for side in (left, right) if isinstance(side, str | bytes | list | tuple)]
    if operator == "+":
        return sum(sizes)
    times = [side for side in (left, right) if isinstance(side, int)]
    return sizes[0] * times[0] if sizes and times else 0


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: Jinja's own filter escapes <, > and & for web pages, which would change the prompt."""
    allowed = {key: options[key] for key in ("separators", "sort_keys") if key in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **allowed)
