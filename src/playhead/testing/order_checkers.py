"""What notices an op in an engine with `batch_invariant` that may add up in an order which depends on the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from playhead.schedule.request import Chunk
from playhead.step.worker import Worker
from playhead.testing.mutant import Checker
from playhead.testing.tiny_worker import TINY_GEMMA3, last_logits, tiny_worker
from playhead.types import Mode

MATMULS = frozenset({"mm", "addmm", "addmm_", "mv", "addmv", "linear", "_scaled_mm", "_grouped_mm", "dot"})
BATCHED_MATMULS = frozenset({"bmm", "baddbmm"})  # a CPU's attention has them; no setting is about its order
# Ours whose result for a row depends on nothing but the row: a program for each row, or sums of integers. An op that is
# not here has to be looked at, on a GPU, before an engine with `batch_invariant` may use it.
ROW_ALONE = frozenset(
    {
        "matmul_in_order",
        "attend_in_order",
        "embed",
        "rms_norm",
        "add_rms_norm",
        "norm_add_",
        "qk_rope_write",
        "gated_activation",
        "softcap_",
        "choose_tokens",
        "forbid_",
        "advance",
        "newest_ids",
        "translate",
    }
)
SIDE_BY_SIDE = {**TINY_GEMMA3, "model_type": "cohere2", "logit_scale": 0.5}
CPU_ATTENTION = frozenset({"decode_cells", "key_cells", "extend_cells"})


class OpNames(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of all ops that are dispatched, without overloads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found.add(str(func).rsplit(".", 1)[0])  # "aten.mm.out" without its overload
        return func(*args, **(kwargs or {}))


def unordered_ops(worker: Worker) -> list[str]:
    """The ops of a step over tokens and of a decode step that may add up in an order of the batch."""
    with OpNames() as names:
        last_logits(worker, [[7, 8, 9], [3]])
        seq = worker.kv.admit("one", [3])
        for token in (3, 4):  # the first is a step over tokens, the second decodes
            worker.kv.extend(seq, 1)
            worker.run([Chunk.newest(seq, [token])])
    on_cpu = worker.device.type == "cpu"
    matmuls = MATMULS if on_cpu else MATMULS | BATCHED_MATMULS
    ours = ROW_ALONE | CPU_ATTENTION if on_cpu else ROW_ALONE
    found = []
    for name in sorted(names.found):
        namespace, base = name.split(".", 1)
        base = base.removesuffix("_into")
        if (namespace == "playhead" and base not in ours) or (namespace == "aten" and base in matmuls):
            found.append(f"{name} may add up in another order in another batch")
    return found


def sums_in_order() -> list[str]:
    """An eager worker: its ops are those that the graphs of other modes hold."""
    models = (TINY_GEMMA3, SIDE_BY_SIDE)
    return [
        line for model in models for line in unordered_ops(tiny_worker(Mode.EAGER, model=model, batch_invariant=True))
    ]


ORDER_CHECKERS = (Checker(name="sums in order", run=sums_in_order),)
