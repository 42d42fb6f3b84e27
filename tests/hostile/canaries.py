"""Cases that end in every wrong way on purpose: what the runner must notice. Prints each name with its verdict."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from playhead.errors import PlayheadError
from playhead.testing.hostile_run import HostileCase, run_cases


def hang() -> None:
    while True:
        pass


def refuse() -> None:
    raise PlayheadError("typed")


def raise_raw() -> None:
    raise IndexError("raw")


def take_too_much() -> None:
    bytearray(3 << 30)


def panic() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(0)
    tokenizer.encode("hello")


WAYS: dict[str, Callable[[], object]] = {
    "fine": lambda: None,
    "refuse": refuse,
    "hang": hang,
    "raise raw": raise_raw,
    "take too much": take_too_much,
    "abort": os.abort,
    "panic": panic,
    "leave": lambda: os._exit(0),
    "wait a little": lambda: threading.Event().wait(0.5),
}


def main() -> None:
    for name, way in WAYS.items():
        case = HostileCase(kind="canary", name=name, make=dict)

        def act(model: Path, chats: bool, way: Callable[[], object] = way) -> str:
            way()
            return "done"

        (outcome,) = run_cases([case], act, cpu_s=0.3)
        print(f"{name}: {outcome.verdict}")


if __name__ == "__main__":
    main()
