"""The process behind chat templates: started when wanted, replaced when it dies, gone when its owner is."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from playhead.errors import ChatTemplateError
from playhead.models.text.template_worker import TemplateLimits, TemplateWorker

ENDLESS = "{% set x = namespace(n=3) %}{% for i in range(99999) %}{% set x.n = x.n * x.n %}{% endfor %}"


def job(source, **variables):
    return json.dumps({"source": source, "variables": variables, "now": "2026-11-15T00:00:00"}).encode()


@pytest.fixture
def worker():
    made = TemplateWorker(TemplateLimits(cpu_s=0.3))
    yield made
    made.close()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_no_process_is_started_before_the_first_job(worker):
    assert worker.pid is None
    assert worker.ask(job("{{ a }}", a=1)) == "1"
    first = worker.pid
    assert worker.ask(job("{{ a }}", a=2)) == "2"
    assert worker.pid == first, "it stays"


def test_after_a_job_that_took_too_much_another_process_serves_the_next(worker):
    assert worker.ask(job("a")) == "a"
    first = worker.pid
    with pytest.raises(ChatTemplateError, match=r"0\.3 s of CPU time"):
        worker.ask(job(ENDLESS))
    assert worker.ask(job("b")) == "b"
    assert worker.pid != first
    assert not is_alive(first), "ended and waited for"


def test_a_process_that_somebody_kills_between_two_jobs_is_no_jobs_error(worker):
    worker.ask(job("a"))
    first = worker.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert worker.ask(job("b")) == "b"
    assert worker.pid != first


def test_signals_that_reach_every_process_of_a_program_end_no_job(worker):
    worker.ask(job("a"))
    first = worker.pid
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(first, number)
    assert (worker.ask(job("b")), worker.pid) == ("b", first)


def test_memory_is_bounded_and_the_process_goes_on():
    worker = TemplateWorker(TemplateLimits(memory_bytes=64 << 20))
    assert worker.ask(job("a")) == "a"
    first = worker.pid
    with pytest.raises(ChatTemplateError, match="MemoryError"):
        worker.ask(job("{{ 'a'.center(100000000) }}"))
    assert (worker.ask(job("b")), worker.pid) == ("b", first)
    worker.close()


def test_closing_leaves_no_process_behind(worker):
    worker.ask(job("a"))
    pid = worker.pid
    worker.close()
    assert worker.pid is None
    assert not is_alive(pid)


def test_a_dropped_worker_leaves_no_process_behind():
    worker = TemplateWorker()
    worker.ask(job("a"))
    pid = worker.pid
    del worker
    gc.collect()
    assert not is_alive(pid)


def test_a_program_that_ends_leaves_no_process_behind():
    code = (
        "from playhead.models.text.template_worker import TemplateWorker; import json\n"
        "w = TemplateWorker(); w.ask(json.dumps({'source': 'a'}).encode()); print(w.pid)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not is_alive(int(ran.stdout))
    assert ran.stderr == ""


FORKING = """
import json, os
from playhead.models.text.template_worker import TemplateWorker
worker, job = TemplateWorker(), json.dumps({"source": "{{ a }}", "variables": {"a": 1}, "now": "2026-11-15"}).encode()
worker.ask(job)
first = worker.pid
if os.fork() == 0:
    print(worker.ask(job), worker.pid != first, flush=True)
    worker.close()
    os._exit(0)
os.wait()
print(worker.ask(job), worker.pid == first)
"""


def test_a_forked_program_gets_a_process_of_its_own():
    """Two programs that write into one pipe would get each other's answers."""
    ran = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    assert ran.stdout == "1 True\n1 True\n"


def test_threads_get_their_own_answers(worker):
    answers: dict[int, list[str]] = {}

    def ask(number):
        answers[number] = [worker.ask(job("{{ a }}", a=number)) for _ in range(50)]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: [str(i)] * 50 for i in range(4)}


def test_an_interrupt_in_the_middle_of_a_job_mixes_up_no_answers(worker, monkeypatch):
    worker.ask(job("a"))
    read = TemplateWorker._read

    def interrupted(self, process, num_bytes):
        monkeypatch.setattr(TemplateWorker, "_read", read)
        raise KeyboardInterrupt

    monkeypatch.setattr(TemplateWorker, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.ask(job("lost"))
    assert worker.ask(job("b")) == "b"


def test_ctrl_c_is_not_the_processs_to_handle(worker):
    worker.ask(job("a"))
    os.kill(worker.pid, signal.SIGINT)
    assert worker.ask(job("b")) == "b"


def test_the_process_knows_nothing_but_jinja():
    code = "import playhead.models.text.template_child, sys; print({'torch', 'numpy', 'tokenizers'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
