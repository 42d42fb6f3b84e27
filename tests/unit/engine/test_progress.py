"""Bars over prompts: the caller's own, and none where it would draw over another."""

from __future__ import annotations

import pytest

from playhead.engine.progress import prompt_bar
from playhead.outputs import CompletionOutput, FinishReason, RequestOutput
from playhead.testing.threads import Beside

COMPLETION = CompletionOutput(index=0, text="", token_ids=[1, 2], finish_reason=FinishReason.LENGTH)
OUTPUT = RequestOutput(request_id="r", prompt=None, prompt_token_ids=[1], outputs=[COMPLETION], finished=True)


class Bar:
    """Made as `tqdm` is."""

    def __init__(self, *, total: int, desc: str, **more: object) -> None:
        self.seen: list[object] = [total, desc]

    def update(self, count: int) -> None:
        self.seen.append(count)

    def close(self) -> None:
        self.seen.append("closed")


def test_a_callers_own_bar_is_moved_and_closed_whatever_happens():
    made = []

    def make(**options: object) -> Bar:
        made.append(Bar(**options))
        return made[0]

    def interrupted() -> None:
        with prompt_bar(3, enabled=make) as advance:
            advance(OUTPUT)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert made[0].seen == [3, "processed prompts", 1, "closed"]


def draw() -> None:
    with prompt_bar(1) as advance:
        advance(OUTPUT)


def test_the_main_thread_alone_draws_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    thread = Beside(draw)
    thread.start()
    thread.result()
    assert capsys.readouterr().err == ""
    draw()
    assert "1/1" in capsys.readouterr().err
