"""Processes: a forked child is refused its parent's engines and may make its own; a spawned one is like any other."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import playhead.engine.build
from playhead.engine.build import prepare_fork
from playhead.errors import ConfigError

FORK = """
import asyncio, os
import torch
from playhead import LLM, AsyncEngine, SamplingParams
from playhead.errors import MisuseError

SMALL = {"max_model_len": 64, "max_num_seqs": 2, "kv_memory_bytes": 1 << 23, "graph_mode": "eager"}
PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


async def last(engine):
    return [output async for output in engine.generate("The whale", PARAMS)][-1].outputs[0].token_ids


def refused(call):
    try:
        call()
    except MisuseError as error:
        return "forked child" in str(error)
    return False


def child(llm, engine, stream):
    \"\"\"What went wrong, as bits of an exit code.\"\"\"
    asked = refused(lambda: llm.generate("The whale", PARAMS)), refused(lambda: asyncio.run(last(engine)))
    also = refused(lambda: next(stream)), refused(llm.close)
    own = LLM("embedded", **SMALL).generate("The whale", PARAMS)[0].outputs[0].token_ids
    checks = (*asked, *also, own == wanted)
    return sum(1 << i for i, is_right in enumerate(checks) if not is_right)


torch.set_num_threads(2)
torch.ones(1 << 20).exp()  # torch's threads have begun
with LLM("embedded", **SMALL) as llm:
    engine = AsyncEngine("embedded", **SMALL)
    wanted = asyncio.run(last(engine))
    stream = llm.stream("The whale", PARAMS)
    next(stream)
    pid = os.fork()
    if not pid:
        os._exit(child(llm, engine, stream))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, bin(code)
    assert list(stream)[-1].outputs[0].token_ids == wanted
    assert asyncio.run(last(engine)) == wanted
    engine.shutdown()
"""

SPAWN = """
import multiprocessing


def generated(prompt):
    from playhead import LLM, SamplingParams

    with LLM("embedded", max_model_len=64, max_num_seqs=2, kv_memory_bytes=1 << 23, graph_mode="eager") as llm:
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        return llm.generate(prompt, params)[0].outputs[0].token_ids


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(len(pool.map(generated, ["The whale"])[0]))
"""


def ran(*arguments: str) -> tuple[str, str]:
    """What a program that ended well wrote to stdout and stderr."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_is_refused_its_parents_engines_and_may_make_its_own():
    _, said = ran("-W", "ignore", "-c", FORK)
    assert "runs on one thread" in said


def test_a_spawned_child_may_make_its_own(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(SPAWN)
    assert ran(str(script)) == ("2\n", "")


def test_a_forked_child_of_a_process_that_has_used_the_gpu_is_told_to_spawn(monkeypatch):
    monkeypatch.setattr(playhead.engine.build, "IMPORTED_IN", -1)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(ConfigError, match="get_context\\('spawn'\\)"):
        prepare_fork(torch.device("cuda"))
