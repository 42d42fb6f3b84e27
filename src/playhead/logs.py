"""What Playhead writes down: records of the standard `logging`, under the logger "playhead".

A program that sets up nothing sees warnings on stderr and nothing else. PLAYHEAD_LOG shows more:

    PLAYHEAD_LOG=info          one line per event: a model loaded, KV memory planned, a request failed
    PLAYHEAD_LOG=debug,json    also every graph that is captured, as one JSON object per line

A record has what happened and facts about it: names, sizes, seconds, error types. Prompts and generated text are never
among them. A record carries its facts as `record.facts`, for handlers of a program's own.
"""

from __future__ import annotations

import json
import logging
import sys

from playhead.env import LOG, log_words
from playhead.errors import ConfigError

NAME = "playhead"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
JSON = "json"


class StderrHandler(logging.Handler):
    """Writes to what is stderr at that moment: tests and notebooks exchange it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


class JsonLines(logging.Formatter):
    """One JSON object per record: when, how bad, where, what, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": vars(record).get("event", record.getMessage()),
        }
        return json.dumps({**values, **vars(record).get("facts", {})}, default=str)


def event(logger: logging.Logger, level: int, what: str, **facts: object) -> None:
    """Write down what happened. Facts are names, numbers and types, never a prompt or a text."""
    if logger.isEnabledFor(level):
        shown = ", ".join(
            f"{name}={value:.3f}" if isinstance(value, float) else f"{name}={value}" for name, value in facts.items()
        )
        logger.log(level, "%s: %s", what, shown, extra={"event": what, "facts": facts})


def log_failure(logger: logging.Logger, request_id: str, error: BaseException) -> None:
    """Write down that a request failed, by types alone: the words of an error may repeat what was sent."""
    cause = None if error.__cause__ is None else type(error.__cause__).__name__
    event(logger, logging.INFO, "request failed", request=request_id, error=type(error).__name__, cause=cause)


def set_up_logging() -> None:
    """Show what PLAYHEAD_LOG asks for. Without it, or a second time, nothing changes."""
    words = log_words()
    logger = logging.getLogger(NAME)
    if not words or any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        return
    levels = [LEVELS[word] for word in words if word in LEVELS]
    wrong = [word for word in words if word not in LEVELS and word != JSON]
    if wrong or len(levels) > 1:
        raise ConfigError(
            f"{LOG}: found {','.join(words)!r}; wanted one of {', '.join(LEVELS)}, with ',json' for JSON lines."
        )
    write_to_stderr(levels[0] if levels else logging.INFO, as_json=JSON in words)


def write_to_stderr(level: int, *, as_json: bool) -> None:
    """Show records of this level and above, unless PLAYHEAD_LOG has set up what is shown."""
    logger = logging.getLogger(NAME)
    if any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        return
    handler = StderrHandler()
    handler.setFormatter(
        JsonLines() if as_json else logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    )
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # a program's own handlers would write every line again


def shown_words() -> str:
    """What is shown in this process, as PLAYHEAD_LOG says it for another: "info,json". Empty if nothing was set up."""
    logger = logging.getLogger(NAME)
    shown = [handler for handler in logger.handlers if isinstance(handler, StderrHandler)]
    if not shown:
        return ""
    level = next((word for word, level in LEVELS.items() if level == logger.level), "info")
    return f"{level},{JSON}" if isinstance(shown[0].formatter, JsonLines) else level
