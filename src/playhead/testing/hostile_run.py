"""Hostile checkpoints loaded one by one, each in a process of its own with a limit of memory and of CPU time.

The process that runs them imports everything once, loads the sound checkpoint to warm up, and forks for each case. A
limit that is passed ends the child by a signal, which nothing in the child can catch or explain away.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import torch

from playhead.engine.config import EngineConfig
from playhead.engine.still import StillObjects
from playhead.errors import ChatTemplateError, CheckpointError, PlayheadError, UnsupportedModelError
from playhead.inputs import Prompt
from playhead.llm import LLM
from playhead.models.checkup import Checkup
from playhead.sampling_params import SamplingParams
from playhead.testing.hostile_base import Files, write_files
from playhead.types import Mode

CPU_S = 2.0
MEMORY_BYTES = 1 << 30
WALL_S = 300.0
"""Only for a child that neither works nor ends. CPU time decides all else: machines are shared."""

SETTINGS = EngineConfig(
    dtype="float32",  # on a GPU too: in bfloat16 the best logits of a tiny model may be equal
    max_model_len=32,
    max_num_seqs=1,
    max_num_batched_tokens=8,
    kv_memory_bytes=1 << 20,
    graph_mode=Mode.EAGER,
)
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
PROMPT = "hello, world"
MESSAGES = [{"role": "user", "content": "hi"}]


class Verdict(StrEnum):
    """How a case ended. Only the first two are right."""

    LOADED = "loaded"
    REFUSED = "refused"
    RAW = "raw exception"
    TOO_LONG = "over the CPU limit"
    ABORTED = "ended by a signal"
    WRONG = "loaded wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileCase:
    """Files to load. A harmless case must load and answer like the sound checkpoint it was made from.

    `model` is the file or directory to load, inside the case's directory.
    """

    kind: str
    name: str
    make: Callable[[], Files]
    model: str = "."
    is_harmless: bool = False
    chats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kind: str
    name: str
    verdict: Verdict
    said: str = ""

    @property
    def is_right(self) -> bool:
        return self.verdict in (Verdict.LOADED, Verdict.REFUSED)


def load_and_answer(model: Path, *, chats: bool) -> str:
    """What a user does: load, ask, read. The tokens and their text."""
    with LLM(str(model), SETTINGS) as llm:
        prompt: Prompt = llm.chat_prompt(MESSAGES) if chats else PROMPT
        completion = llm.generate([prompt], GREEDY)[0].outputs[0]  # in a list: no ids would be no prompts
        return f"{completion.token_ids} {completion.text!r}"


def run_cases(
    cases: Iterable[HostileCase], act: Callable[[Path, bool], str] | None = None, *, cpu_s: float = CPU_S
) -> Iterator[Outcome]:
    """The outcome of each case. `act` stands for loading, so that the limits themselves can be tried out."""
    torch.set_num_threads(1)  # a fork has only the thread that made it
    still = StillObjects()  # until the last case: a child that looked through what is imported would copy each page
    still.leave_out()
    wanted: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="playhead-hostile-") as root:
        for case in cases:
            directory = Path(root) / "case"
            directory.mkdir()
            write_files(directory, case.make())
            outcome = run_one(case, directory / case.model, act or answer, cpu_s)
            if case.is_harmless and act is None:
                outcome = compared(outcome, wanted)
            yield outcome
            shutil.rmtree(directory)


def answer(model: Path, chats: bool) -> str:
    return load_and_answer(model, chats=chats)


def doctor_agrees(model: Path, chats: bool) -> str:
    """Load as `answer` does. A checkpoint that is refused must have problems that a look at its files finds."""
    problems = Checkup(model).run()
    try:
        said = load_and_answer(model, chats=chats)
    except (CheckpointError, UnsupportedModelError, ChatTemplateError) as error:
        if not problems:
            raise AssertionError(f"the doctor found nothing; the load said {error}") from None
        raise
    return said


def compared(outcome: Outcome, wanted: dict[str, str]) -> Outcome:
    """A harmless case of a kind must be loaded and say what the first one of its kind, the sound one, said."""
    said = wanted.setdefault(outcome.kind, outcome.said)
    if outcome.verdict is Verdict.LOADED and outcome.said == said:
        return outcome
    if not outcome.is_right:
        return outcome
    found = f"{outcome.verdict}: {outcome.said}; wanted {said}"
    return Outcome(kind=outcome.kind, name=outcome.name, verdict=Verdict.WRONG, said=found)


def run_one(case: HostileCase, model: Path, act: Callable[[Path, bool], str], cpu_s: float) -> Outcome:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        in_child(writer, lambda: act(model, case.chats), cpu_s)
    os.close(writer)
    said = read_all(reader, child)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        verdict = Verdict.TOO_LONG if number in (signal.SIGPROF, signal.SIGKILL) else Verdict.ABORTED
        return Outcome(kind=case.kind, name=case.name, verdict=verdict, said=signal.Signals(number).name)
    if not said:
        return Outcome(kind=case.kind, name=case.name, verdict=Verdict.ABORTED, said=f"exit status {status}")
    verdict, text = json.loads(said)
    return Outcome(kind=case.kind, name=case.name, verdict=Verdict(verdict), said=text)


def read_all(reader: int, child: int) -> bytes:
    """What the child wrote; a child that hangs without working is killed."""
    poll, parts = select.poll(), list[bytes]()
    poll.register(reader, select.POLLIN | select.POLLHUP)
    while True:
        if not poll.poll(WALL_S * 1000):
            os.kill(child, signal.SIGKILL)
        part = os.read(reader, 1 << 16)
        if not part:
            os.close(reader)
            return b"".join(parts)
        parts.append(part)


def in_child(writer: int, act: Callable[[], str], cpu_s: float) -> None:
    """Act within the limits, report, and end without cleaning up what belongs to the parent."""
    verdict, said = Verdict.RAW, "nothing reported"
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 2)  # panics of libraries print themselves
        limit = address_space_bytes() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        verdict, said = Verdict.LOADED, act()
    except PlayheadError as error:
        verdict, said = Verdict.REFUSED, f"{type(error).__name__}: {error!s:.400}"
    except BaseException:  # noqa: BLE001  what is not typed is what is looked for
        verdict, said = Verdict.RAW, traceback.format_exc()[-1500:]
    finally:
        os.write(writer, json.dumps([verdict, said[:2000]]).encode())
        os._exit(0)


def address_space_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def report(outcomes: Iterable[Outcome]) -> str:
    """One line per kind: how many cases, how they ended."""
    counts: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        kinds = counts.setdefault(outcome.kind, {})
        kinds[outcome.verdict] = kinds.get(outcome.verdict, 0) + 1
    lines = []
    for kind, found in counts.items():
        parts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found.items()))
        lines.append(f"{kind:<18} {sum(found.values()):>4} cases: {parts}")
    return "\n".join(lines)


def as_record(outcome: Outcome) -> dict[str, object]:
    return asdict(outcome)
