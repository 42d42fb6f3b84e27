"""The tools of a request and its choice among them, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from playhead.errors import RequestError, shown
from playhead.request_limits import RequestLimits

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME_RULE = "1 to 64 letters, digits, '_', '-' and '.'"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def for_template(self) -> dict[str, object]:
        """The tool as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Choice(StrEnum):
    """What `tool_choice` says. A named function is `NAMED`."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """The tools that a request shows to the model. `forced` are those one of which must be called, if any must."""

    tools: tuple[FunctionTool, ...] = ()
    choice: Choice = Choice.NONE
    forced: tuple[FunctionTool, ...] = ()
    is_parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        """The functions that an answer may call."""
        return frozenset(tool.name for tool in self.forced or self.tools)

    @property
    def is_forced(self) -> bool:
        return bool(self.forced)

    def for_template(self) -> list[dict[str, object]] | None:
        """The tools as chat templates take them; None where there are none to show."""
        return [tool.for_template() for tool in self.tools] or None


def tool_request(
    tools: object, tool_choice: object = None, *, is_parallel: bool = True, limits: RequestLimits | None = None
) -> ToolRequest:
    """The checked tools of a request, or `RequestError`. Values are those of the body: lists and tables.

    Both ways of writing a function are taken: `{"type": "function", "function": {"name": ...}}` of chat completions,
    and `{"type": "function", "name": ...}` of responses. `tool_choice` is "auto" where it is not given.
    """
    known = read_tools(tools, limits or RequestLimits())
    choice, name = read_choice(tool_choice)
    if choice is Choice.NONE or (not known and choice is Choice.AUTO):
        return ToolRequest(is_parallel=is_parallel)
    forced = {Choice.REQUIRED: known, Choice.NAMED: tuple(tool for tool in known if tool.name == name)}.get(choice, ())
    if choice is not Choice.AUTO and not forced:
        wanted = f"a tool named {shown(name)}" if name is not None else "tools"
        raise RequestError("tool_choice", shown(name or tool_choice), f"{wanted} in 'tools'", "Add it to the tools.")
    return ToolRequest(tools=known, choice=choice, forced=forced, is_parallel=is_parallel)


def read_tools(tools: object, limits: RequestLimits) -> tuple[FunctionTool, ...]:
    """The functions of the field `tools`, each name once."""
    if tools is None:
        return ()
    if not isinstance(tools, list | tuple):
        raise RequestError("tools", f"a {type(tools).__name__}", "a list of tools", "Change it or leave it out.")
    if len(tools) > limits.tools:
        raise RequestError("tools", f"{len(tools)} tools", f"at most {limits.tools} here", "Send fewer.")
    known: dict[str, FunctionTool] = {}
    num_bytes = 0
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        function = read_function(where, tool, limits)
        if function.name in known:
            raise RequestError(where, f"the name {function.name!r} again", "each name once", "Rename one of the two.")
        known[function.name] = function
        num_bytes += schema_bytes(where, function.parameters, limits) + len(
            function.description.encode(errors="replace")
        )
        if num_bytes > limits.tools_bytes:
            found, wanted = f"over {limits.tools_bytes} bytes in all", f"at most {limits.tools_bytes} here"
            raise RequestError("tools", found, wanted, "Send fewer tools, or shorter ones.")
    return tuple(known.values())


def read_function(where: str, tool: object, limits: RequestLimits) -> FunctionTool:
    """One function, with its texts and its schema of the right kind and size."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise RequestError(where, shown(tool), 'a tool of type "function"', "There are no other tools.")
    table = tool.get("function", tool)
    table = table if isinstance(table, Mapping) else {}
    name, description, parameters = table.get("name"), table.get("description"), table.get("parameters")
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise RequestError(f"{where}, name", shown(name), NAME_RULE, "Rename the function.")
    if not isinstance(description, str | None):
        raise RequestError(f"{where}, description", f"a {type(description).__name__}", "a text", "Change it.")
    if len(description or "") > limits.tool_description_chars:
        found, wanted = f"{len(description or '')} characters", f"at most {limits.tool_description_chars} here"
        raise RequestError(f"{where}, description", found, wanted, "Shorten it.")
    if parameters is None or parameters == {}:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        found = shown(parameters.get("type")) if isinstance(parameters, Mapping) else f"a {type(parameters).__name__}"
        raise RequestError(f"{where}, parameters", found, 'a JSON schema of type "object"', "Change the schema.")
    return FunctionTool(name=name, description=description or "", parameters=parameters)


def schema_bytes(where: str, schema: Mapping[str, Any], limits: RequestLimits) -> int:
    """How long a schema is as JSON. One that is too long, or nested too deeply, is refused."""
    level: Sequence[object] = [schema]
    for _ in range(limits.tool_parameters_depth):
        level = [child for parent in level for child in children(parent)]
    if any(isinstance(one, Mapping | list | tuple) for one in level):
        found, wanted = "deeper nesting", f"a depth of at most {limits.tool_parameters_depth} here"
        raise RequestError(f"{where}, parameters", found, wanted, "Send a flatter schema.")
    num_bytes = len(json.dumps(schema, ensure_ascii=False).encode(errors="replace"))
    if num_bytes > limits.tool_parameters_bytes:
        found, wanted = f"{num_bytes} bytes", f"at most {limits.tool_parameters_bytes} here"
        raise RequestError(f"{where}, parameters", found, wanted, "Send a smaller schema.")
    return num_bytes


def children(value: object) -> Sequence[object]:
    if isinstance(value, Mapping):
        return tuple(value.values())
    return value if isinstance(value, list | tuple) else ()


def read_choice(value: object) -> tuple[Choice, str | None]:
    """What `tool_choice` says, and the function that it names."""
    if value is None:
        return Choice.AUTO, None
    if value in ("none", "auto", "required"):
        return Choice(str(value)), None
    if isinstance(value, Mapping) and value.get("type") == "function":
        table = value.get("function", value)
        name = table.get("name") if isinstance(table, Mapping) else None
        if isinstance(name, str):
            return Choice.NAMED, name
    wanted = '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
    raise RequestError("tool_choice", shown(value), wanted, "Change it or leave it out.")
