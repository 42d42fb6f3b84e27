"""The process that speaks HTTP has no torch where the engine has a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from playhead.engine.config import EngineConfig
from playhead.serve import engine_entry
from playhead.serve.engine_child import start_child

CODE = """
import sys
import playhead.serve.choose
from playhead.engine.config import EngineConfig
playhead.serve.choose.backend_for("embedded", EngineConfig(device="cuda"))
print("torch" in sys.modules)
"""


def test_the_remote_backend_brings_no_torch():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_jinja_is_imported_by_the_process_that_renders_alone():
    code = "import sys, playhead.serve.engine_process; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


SERVE = """
import subprocess, sys

class Started(BaseException):
    pass

def popen(command, **options):
    modules = [name for name in ("litestar", "uvicorn", "torch", "tokenizers") if name in sys.modules]
    print(command[3], command[5], modules)
    raise Started

subprocess.Popen = popen
from playhead.cli.main import app
try:
    app(["serve", "embedded", "--process", "two", "--device", DEVICE, "--port", "0"])
except Started:
    pass
"""


@pytest.mark.parametrize(("device", "gpu"), [("cuda", "0"), ("cuda:3", "3"), ("cpu", "")])
def test_the_engines_process_is_started_before_the_packages_of_a_server_are_imported(device, gpu):
    code = f"DEVICE = {device!r}\n{SERVE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"playhead.serve.engine_entry {gpu} []\n"


def test_a_process_that_was_started_for_nothing_is_ended():
    child = start_child(EngineConfig(device="cpu"))
    child.discard()
    assert child.process.returncode is not None
    child.discard()  # a second call does nothing


def test_a_machine_without_a_driver_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(engine_entry, "DRIVER", "libnowhere.so.1")
    engine_entry.make_context(0)
