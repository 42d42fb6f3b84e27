"""The engine's process as the server starts it. Imports are few: the server starts the process first of all, and
imports its own packages while the process imports torch.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from playhead.engine.config import EngineConfig
from playhead.env import for_engine_process, hides_gpus
from playhead.logs import shown_words
from playhead.serve.config import Processes

MODULE = "playhead.serve.engine_entry"
END_S = 10.0  # a GPU's memory takes a moment to be given back
GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineChild:
    """A process that imports what an engine needs, and then waits for the first message on its socket."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """Wait for a process that is about to end, and kill one that does not."""
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def discard(self) -> None:
        """End a process that was never used. A process that has ended is left as it is."""
        if self.process.poll() is None:
            self.connection.close()
            self.process.kill()
            self.process.wait()


def start_child(config: EngineConfig) -> EngineChild:
    """Start a process for an engine of this configuration."""
    ours, theirs = socket.socketpair()
    with theirs:
        # -P: a file in the working directory must not be taken for one of ours. The process has this one's path.
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), gpu_of(config)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=for_engine_process(sys.path, shown_words()),
            )
        except BaseException:  # no process is to be had
            ours.close()
            raise
    return EngineChild(process=process, connection=ours)


def has_own_process(processes: Processes, config: EngineConfig) -> bool:
    """Whether the engine runs in a process of its own: as asked for, or as suits the device."""
    return wants_gpu(config) if processes is Processes.AUTO else processes is Processes.TWO


def wants_gpu(config: EngineConfig) -> bool:
    """Whether the engine is to run on a GPU, told without torch: a wrong guess costs speed and nothing else."""
    if config.device != "auto":
        return config.device.startswith("cuda")
    return not hides_gpus() and any(path.exists() for path in GPU_FILES)


def gpu_of(config: EngineConfig) -> str:
    """The number of the GPU that the engine is to use, as an argument of its process; empty for none."""
    return (config.device.partition(":")[2] or "0") if wants_gpu(config) else ""
