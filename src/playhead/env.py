"""Environment variables: switches for debugging, secrets, where files go. Read when asked for, never at import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

STRICT_LEDGER = "PLAYHEAD_STRICT_LEDGER"
LOG = "PLAYHEAD_LOG"
API_KEYS = "PLAYHEAD_API_KEYS"


def wants_strict_ledger() -> bool:
    """Whether engines that were not told otherwise raise at the first violation of the account of KV pages."""
    return os.environ.get(STRICT_LEDGER, "") not in ("", "0")


def log_words() -> tuple[str, ...]:
    """What is to be logged, as `logs.py` reads it: a level, "json", or both; nothing if the variable is not set."""
    return tuple(word.strip().lower() for word in os.environ.get(LOG, "").split(",") if word.strip())


def key_of(variable: str) -> str | None:
    """A secret from the environment: on a command line every user of the machine could read it."""
    return os.environ.get(variable) or None


def environment_without_keys() -> dict[str, str]:
    """For a server of our own on this machine alone, which needs no keys."""
    return {name: value for name, value in os.environ.items() if name != API_KEYS}


def api_keys_text() -> str | None:
    """The API keys of a server, as `serve/auth.py` reads them; None if the variable is not set."""
    return os.environ.get(API_KEYS)


def user_path(text: str) -> Path:
    """A path as a shell reads it: ~ and ~name are home directories, and stay as they are where there is none.

    `Path.expanduser` raises `RuntimeError` for a name that the machine does not know.
    """
    return Path(os.path.expanduser(text))


def state_directory() -> Path | None:
    """Where a user's history is kept: $XDG_STATE_HOME/playhead, or ~/.local/state/playhead.

    None for a user without a home, as in a container that runs under any number.
    """
    directory = user_path(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    return directory / "playhead" if directory.is_absolute() else None


def hides_gpus() -> bool:
    """Whether CUDA is told to see no GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") == ""


def tell_ray_to_be_private(is_alone: bool) -> None:
    """Have a Ray that is not imported yet ask everybody for a token, and on a machine alone listen on loopback."""
    if is_alone:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def for_engine_process(path: Sequence[str], log: str = "") -> dict[str, str]:
    """The variables of the process that runs a server's engine: this one's without API keys, and where modules are.

    `log` is what it shows, as PLAYHEAD_LOG has it.
    """
    added = {"PYTHONPATH": os.pathsep.join(filter(None, path)), **({LOG: log} if log else {})}
    return environment_without_keys() | added
