"""The process group of the ranks: torch.distributed's own, by gloo on CPUs and by NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from playhead.errors import MisuseError

PATIENCE_S = 600.0
"""How long torch lets a collective wait. The first rank notices a rank that does not come long before."""
LOOPBACK = "lo"


def join(store_path: str, *, rank: int, num_ranks: int, device: torch.device) -> None:
    """Meet all ranks, of this machine. Returns when every one of them is there."""
    check_no_group()
    store = distributed.FileStore(store_path, num_ranks)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=PATIENCE_S)
    if device.type == "cuda":
        distributed.init_process_group(
            "nccl", store=store, rank=rank, world_size=num_ranks, timeout=timeout, device_id=device
        )
        return
    with only_on_this_machine():
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timeout)


def leave() -> None:
    """End this process's part in the group. A second call does nothing."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def abort() -> None:
    """End the collectives that this process is in: a kernel of NCCL waits for a rank that has gone for ever."""
    if distributed.is_initialized() and distributed.get_backend() == "nccl":
        distributed.distributed_c10d._abort_process_group()


def check_no_group() -> None:
    """`MisuseError` if this process has a group already: torch has one default group per process."""
    if distributed.is_initialized():
        raise MisuseError(
            "tensor_parallel_size: this process uses torch.distributed already, for another engine or by itself. Close "
            "the other engine first, or make this one in a process of its own."
        )


def num_meetings() -> int:
    """How many collectives this rank has begun. Any thread may ask."""
    world = distributed.group.WORLD  # asked once: another thread may leave the group
    return 0 if world is None else int(world._get_sequence_number_for_group())  # type: ignore[attr-defined]


@contextmanager
def only_on_this_machine() -> Iterator[None]:
    """Gloo listens on the loopback interface alone. It reads the variable when the group is made."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    try:
        yield
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before
