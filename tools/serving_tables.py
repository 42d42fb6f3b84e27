"""Writes the tables of docs/serving.md from the code: `python tools/serving_tables.py`, and `--check` to only compare.

A table stands between `<!-- made: NAME -->` and `<!-- end -->`. Everything else on the page is written by hand.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from playhead import structured_outputs
from playhead.engine.config import EngineConfig
from playhead.request_limits import REQUEST_LIMITS
from playhead.serve import decode
from playhead.serve.assemble import make_application
from playhead.serve.auth import KeyRing
from playhead.serve.config import SERVE_SETTINGS, ServeConfig
from playhead.serve.families import FAMILIES
from playhead.serve.local import LocalBackend
from playhead.serve.protocol.chat import ChatRequest, Message
from playhead.serve.protocol.completions import CompletionRequest
from playhead.serve.protocol.fields import StreamOptions
from playhead.serve.protocol.notes import notes_of
from playhead.serve.protocol.responses import ResponsesRequest
from playhead.serve.tools import constraint
from playhead.serve.tools.formats import FORMATS
from playhead.settings import Declared

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "serving.md"
SERVE = ROOT / "src" / "playhead" / "serve"
MADE = re.compile(r"(<!-- made: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

REQUESTS: Mapping[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "a message": Message,
    "`stream_options`": StreamOptions,
}
FIXED_LIMITS = (
    ("depth of a body's JSON", decode.MAX_DEPTH),
    ("lists and objects in a body", decode.MAX_CONTAINERS),
    ("strings in a body, keys included", decode.MAX_STRINGS),
    ("values in a body", decode.MAX_VALUES),
    ("bytes of a schema, an expression or a grammar", structured_outputs.MAX_GRAMMAR_BYTES),
    ("depth of a schema, an expression or a grammar", structured_outputs.MAX_GRAMMAR_DEPTH),
    ("calls that one answer can be forced to make", constraint.MAX_CALLS),
)
SIZES = {1 << 20: "MiB", 1 << 10: "KiB"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown. Bars inside cells are escaped."""
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


def flags() -> str:
    """Every setting of the server: its flag, which is its key in a configuration file too, and its default."""
    return table(("flag", "default", "meaning"), (flag_row(declared) for declared in SERVE_SETTINGS))


def flag_row(declared: Declared) -> tuple[str, str, str]:
    name = declared.name.upper() if declared.setting.is_positional else declared.flag
    switches = [flag for switch in declared.setting.switches for flag in switch.flags]
    names = ", ".join(code(one) for one in (switches or [name, *declared.setting.aliases]))
    return names, default_text(declared), declared.setting.help


def default_text(declared: Declared) -> str:
    value = declared.default
    if value is None or value is False:
        return ""
    size = next((size for size in SIZES if declared.setting.metavar == "SIZE" and value % size == 0), None)
    return (
        code(f"{value:g}" if isinstance(value, float) else value)
        if size is None
        else code(f"{value // size}{SIZES[size]}")
    )


def routes() -> str:
    """Every path of the server, and whether it needs a key where there are keys."""
    app = make_application(LocalBackend("embedded", EngineConfig()), KeyRing([]), ServeConfig())
    rows = ((code(one.method), code(one.path), "no" if one.is_public else "yes") for one in app.endpoints)
    return table(("method", "path", "needs a key"), rows)


def limits() -> str:
    """The most that one request may ask for: keys of the table [limits] in a configuration file."""
    rows = ((code(one.name), f"{one.default:,g}", one.setting.help) for one in REQUEST_LIMITS)
    return table(("limit", "default", "meaning"), rows)


def fixed_limits() -> str:
    """Limits of JSON and of grammars, which cannot be set."""
    return table(("limit", "is"), ((meaning, f"{value:,}") for meaning, value in FIXED_LIMITS))


def metrics() -> str:
    """Every metric."""
    rows = ((code(one.name), one.kind, ", ".join(code(label) for label in one.labels), one.help) for one in FAMILIES)
    return table(("metric", "type", "labels", "meaning"), rows)


def noted_fields() -> str:
    """Fields that are ignored or refused, with the reason, and the requests that have them."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for where, request in REQUESTS.items():
        for name, note in notes_of(request).items():
            found.setdefault((name, "refused" if note.is_refused else "ignored", note.why), []).append(where)
    every = [where for where in REQUESTS if where.startswith("/")]
    rows = (
        (code(name), is_so, "all" if where == every else ", ".join(where), why)
        for (name, is_so, why), where in sorted(found.items())
    )
    return table(("field", "is", "in", "because, or what to do"), rows)


def formats() -> str:
    """Every chat format whose calls are read, with a call as a forced choice writes it."""
    rows = []
    for one in FORMATS.values():
        call = f"{one.text.begin}{one.text.before}{{...}}{one.text.after}{one.text.end}".replace("\n", " ")
        marks = one.reasoning or one.text.reasoning
        reasoning = f"{marks.open}...{marks.close}".replace("\n", " ") if marks is not None else ""
        shown = "by the template" if one.template_knows else "as text" if one.can_choose else "not at all"
        rows.append((code(one.name), code(call), code(reasoning) if reasoning else "", shown))
    return table(("format", "a forced call", "reasoning of its own", "tools are shown"), rows)


def errors() -> str:
    """Every status and code that an error body can have, with its message as far as it is fixed."""
    found = {row for path in sorted(SERVE.rglob("*.py")) for row in errors_of(ast.parse(path.read_text()))}
    return table(
        ("status", "code", "message"),
        ((status, code(name) if name else "", text) for status, name, text in sorted(found)),
    )


def errors_of(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """The errors that one file makes: `Refusal(status, message)`, `status, ErrorDetail(...)`, `BodyError(code=)`."""
    for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        texts = Texts(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and called(node) == "Refusal" and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), texts.keyword(node, "code"), texts.of(node.args[1])
            elif isinstance(node, ast.Call) and called(node) == "BodyError" and texts.keyword(node, "code"):
                yield "400", texts.keyword(node, "code"), ""
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
                status, detail = node.value.elts
                if (
                    isinstance(status, ast.Constant)
                    and isinstance(detail, ast.Call)
                    and called(detail) == "ErrorDetail"
                ):
                    yield str(status.value), texts.keyword(detail, "code"), texts.keyword(detail, "message")


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


class Texts:
    """The texts of one function, and the names that stand for them."""

    def __init__(self, function: ast.AST) -> None:
        self._named = [
            (node.lineno, target.id, node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]

    def keyword(self, node: ast.Call, name: str) -> str:
        return next((self.of(one.value) for one in node.keywords if one.arg == name), "")

    def of(self, node: ast.expr) -> str:
        """A text as the source has it, with dots for what is filled in. Nothing where all of it is."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(str(one.value) if isinstance(one, ast.Constant) else "..." for one in node.values)
        if isinstance(node, ast.Name):
            before = [(line, value) for line, name, value in self._named if name == node.id and line < node.lineno]
            if before and not isinstance(max(before, key=lambda one: one[0])[1], ast.Name):
                return self.of(max(before, key=lambda one: one[0])[1])
        return ""


TABLES: Mapping[str, Callable[[], str]] = {
    "flags": flags,
    "routes": routes,
    "limits": limits,
    "fixed-limits": fixed_limits,
    "metrics": metrics,
    "fields": noted_fields,
    "formats": formats,
    "errors": errors,
}


def made(page: str) -> str:
    """The page with its tables made anew."""
    return MADE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[4]}", page)


def main(arguments: list[str]) -> int:
    page = PAGE.read_text()
    new = made(page)
    if arguments == ["--check"]:
        print(
            "docs/serving.md is true" if new == page else "docs/serving.md differs; run python tools/serving_tables.py"
        )
        return int(new != page)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
