"""Which workers' kernels are compiled already, as notes in the folder where Triton keeps them.

To find out by a rehearsal takes longer than all else that a start does on its own: torch imports an algebra system to
tell the shapes of a few products. A note says that a worker like this one was rehearsed. It decides nothing but time: a
kernel that is missing after all is compiled by the step that launches it first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

import playhead.kernels
from playhead.step.worker import Worker


@dataclass(frozen=True, slots=True)
class KeptKernels:
    """A folder with compiled kernels, each in a folder of its own, and notes. `compiler` is who compiles them now."""

    folder: Path
    compiler: str

    def has(self, key: str) -> bool:
        """Whether the kernels of such a worker were compiled, and none was deleted since, as far as counting tells."""
        try:
            num_kernels = int(self._note(key).read_text())
        except (OSError, ValueError):
            return False
        return self._num_kernels() >= num_kernels

    def add(self, key: str) -> None:
        """Note that they are compiled now. A folder that cannot be written to stays without the note."""
        try:
            self._note(key).write_text(str(self._num_kernels()))
        except OSError:
            return

    def _note(self, key: str) -> Path:
        return self.folder / f"playhead-{hashlib.sha256(f'{key} {self.compiler}'.encode()).hexdigest()[:32]}.txt"

    def _num_kernels(self) -> int:
        return sum(path.is_dir() for path in self.folder.iterdir())


def key_of(worker: Worker) -> str:
    """The same for workers that launch the same kernels: model, sizes, device, and the code that makes kernels."""
    config, decoder = worker.config, worker.model.decoder
    digest = hashlib.sha256()
    for path in sorted(Path(playhead.kernels.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    weights = [(name, tuple(weight.shape), weight.dtype) for name, weight in decoder.named_parameters()]
    sizes = (config.limits, config.page_size, config.token_mode, config.batch_invariant)
    device = worker.device
    chip = torch.cuda.get_device_capability(device.index) if device.type == "cuda" else None
    digest.update(repr((decoder.spec, weights, sizes, chip, torch.__version__)).encode())
    return digest.hexdigest()
