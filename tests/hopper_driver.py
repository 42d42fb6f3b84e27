"""As much of Triton's driver as launches on a Hopper GPU ask for, where there is none."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget

from playhead.testing.launched_kernels import HOPPER


class Hopper:
    """Nothing is launched."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def launcher_cls(self, source: object, metadata: object) -> object:
        """What launches a kernel."""
