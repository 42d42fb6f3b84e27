"""How long a tensor in a bridge holds what its break put there.

All calls of a break share its bridges. A tensor in one of them is good until the next call takes the memory; a capture
that reads it later would replay the values of that next call. While a capture runs, every tensor in a bridge has a
lease, views of it inherit the lease, and reading on an expired lease is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from playhead.errors import CaptureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One tensor's claim on a bridge. The bridge's newest claim is the valid one."""

    storage: int
    number: int
    break_name: str
    what: str


class BridgeLeases:
    """The leases of one capture. It keeps their tensors, so that no other tensor can get the identity of one."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self._leases: dict[int, tuple[torch.Tensor, Lease]] = {}

    def lend(self, tensor: torch.Tensor, break_name: str, what: str) -> torch.Tensor:
        """Give the bridge under `tensor` to it: earlier tensors in that bridge expire."""
        storage = storage_of(tensor)
        number = self._newest[storage] = self._newest.get(storage, 0) + 1
        self._leases[id(tensor)] = tensor, Lease(storage=storage, number=number, break_name=break_name, what=what)
        return tensor

    def follow(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Views of a leased tensor have its lease; of several, the oldest."""
        held = [self._leases[id(tensor)][1] for tensor in inputs if id(tensor) in self._leases]
        for view in outputs if held else ():
            same = [lease for lease in held if lease.storage == storage_of(view)]
            if same and id(view) not in self._leases:
                self._leases[id(view)] = view, min(same, key=lambda lease: lease.number)

    def refuse_expired(self, reader: str, where: str, tensors: Sequence[torch.Tensor]) -> None:
        """Raise if a tensor that is read has lost its bridge."""
        for tensor in tensors:
            _, lease = self._leases.get(id(tensor), (None, None))
            if lease is not None and lease.number != self._newest[lease.storage]:
                raise CaptureError(
                    f"break {lease.break_name!r}",
                    where,
                    f"{reader} reads {lease.what} after the break was called again, which reused its memory",
                    "Copy it before that call.",
                )


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
