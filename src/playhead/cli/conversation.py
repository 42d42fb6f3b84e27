"""A conversation's state, and the commands that change it. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playhead.cli.command import parsed
from playhead.cli.options import output_path
from playhead.env import user_path
from playhead.errors import ConfigError, PlayheadError, RequestError, did_you_mean, shown
from playhead.sampling_params import SAMPLING_SETTINGS, SamplingParams

LEAVE = "/bye"
MAX_SAVED_BYTES = 64 << 20
ROLES = ("system", "user", "assistant")

HELP = {
    "/help": "this list",
    "/bye": "leave, as Ctrl-D does",
    "/new": "forget what was said",
    "/system TEXT": "set the system message; without TEXT, remove it",
    "/set": "show the sampling parameters",
    "/set NAME VALUE": "change a parameter; without VALUE, take the model's default again",
    "/save FILE": "write the conversation as JSON messages",
    "/load FILE": "continue a conversation from a file of /save",
}

SETTABLE = {one.name: one for one in SAMPLING_SETTINGS if one.setting.help and one.setting.group != "output"}


@dataclass(slots=True, kw_only=True)  # not frozen: a conversation goes on
class Conversation:
    """What was said, what the model is told first, and how its tokens are chosen."""

    params: SamplingParams
    own_params: SamplingParams
    """What /set goes back to."""
    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)
    _written: set[Path] = field(default_factory=set)

    def messages_with(self, line: str) -> list[dict[str, str]]:
        """What the model reads to answer a line."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, *self.turns, {"role": "user", "content": line}]

    def add(self, line: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": line}, {"role": "assistant", "content": answer}]

    def obey(self, line: str) -> str:
        """Do what a line that begins with / says. Gives what to print; an error changes nothing."""
        word, _, rest = line.partition(" ")
        does: Mapping[str, Callable[[str], str]] = {
            "/help": self._help,
            "/new": self._forget,
            "/system": self._tell_first,
            "/set": self._set,
            "/save": self._save,
            "/load": self._load,
        }
        if word not in does:
            fix = did_you_mean(word, (*does, LEAVE), "/help lists the commands.")
            raise ConfigError(f"{word}: no such command. {fix} A space before the / makes it text.")
        return does[word](rest.strip())

    def _help(self, rest: str) -> str:
        width = max(map(len, HELP)) + 2
        return "\n".join(f"{name:<{width}}{what}" for name, what in HELP.items())

    def _forget(self, rest: str) -> str:
        self.turns.clear()
        return "forgotten"

    def _tell_first(self, text: str) -> str:
        self.system = text
        return "told first: " + text if text else "there is no system message"

    def _set(self, rest: str) -> str:
        if not rest:
            return "\n".join(f"{name:<20}{one.value_of(self.params)}" for name, one in SETTABLE.items())
        spelled, _, text = rest.partition(" ")
        name = spelled.lstrip("-").replace("-", "_")
        if name not in SETTABLE:
            fix = did_you_mean(name, SETTABLE, "/set lists them.")
            raise ConfigError(f"/set: found {shown(spelled)}; wanted a sampling parameter. {fix}")
        one = SETTABLE[name]
        text = text.strip()
        value = value_of(name, text) if text else one.value_of(self.own_params)
        try:
            self.params = replace(self.params, **{name: value})
        except RequestError as error:
            raise ConfigError(f"/set {name}: found {error.found}; wanted {error.wanted}.") from None
        return f"{name} is {one.value_of(self.params)}"

    def _save(self, text: str) -> str:
        if not text:
            raise ConfigError("/save: found no file name. Write /save FILE.")
        path = output_path("/save", text)
        if path.exists() and path.resolve() not in self._written:
            raise ConfigError(f"/save: {text!r} exists already. Choose another name.")
        opening = [{"role": "system", "content": self.system}] if self.system else []
        try:
            path.write_text(json.dumps([*opening, *self.turns], indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"/save: {text!r} cannot be written: {error.strerror}.") from None
        self._written.add(path.resolve())
        return f"saved to {text}"

    def _load(self, text: str) -> str:
        if not text:
            raise ConfigError("/load: found no file name. Write /load FILE.")
        messages = read_messages(text)
        first = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
        self.system, self.turns = first, [one for one in messages if one["role"] != "system"]
        self._written.add(user_path(text).resolve())
        return f"{len(self.turns)} messages from {text}"


def value_of(name: str, text: str) -> Any:
    """A parameter's value from its text, as its flag would read it."""
    one = SETTABLE[name]
    if one.is_list:
        return (text,)
    if one.kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"/set {name}: found {shown(text)}; wanted true or false.")
        return text.lower() == "true"
    try:
        return parsed(one, text)
    except PlayheadError:
        raise ConfigError(f"/set {name}: found {shown(text)}; wanted {one.wanted}.") from None


def read_messages(text: str) -> list[dict[str, str]]:
    """The messages of a saved conversation."""
    path = user_path(text)
    wanted = "a JSON list of messages, each with a role and a content"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SAVED_BYTES + 1)
        found = json.loads(content[:MAX_SAVED_BYTES])
    except OSError as error:
        raise ConfigError(f"/load: {text!r} cannot be read: {error.strerror}. Check the path.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"/load: {text!r} is no JSON; wanted {wanted}.") from None
    if not isinstance(found, list):
        raise ConfigError(f"/load: {text!r} holds {shown(found)}; wanted {wanted}.")
    messages = []
    for i, one in enumerate(found):
        is_message = isinstance(one, dict) and one.get("role") in ROLES and isinstance(one.get("content"), str)
        if not is_message or (one["role"] == "system" and i):
            raise ConfigError(f"/load: message {i + 1} of {text!r} is {shown(one)}; wanted {wanted}.")
        messages.append({"role": one["role"], "content": one["content"]})
    return messages
