"""What captured execution costs: `python -m bench.graph [--device cuda] [--layers 26] [--tokens 2048] [--hidden 1152]`.

Shapes: T tokens, M hidden size, N = 3M.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from bench.measure import device_us, emit, host_us
from playhead.graph import (
    Backend,
    BreakableCapture,
    BreakOp,
    BridgePool,
    CaptureReport,
    CudaBackend,
    CudaGraphBufferRegistry,
    EagerBackend,
    FillContext,
    FullCapture,
    GraphSlot,
    PaddingPolicy,
    PiecewiseCapture,
    Scope,
    TapeBackend,
    TensorSpec,
    compiler_for,
    record,
)
from playhead.graph.capture import Capture, Inputs
from playhead.testing.toy_runners import KINDS, toy_rig

NUM_SLOTS = 12


def bench_fill(device: torch.device) -> None:
    """Twelve vectors, 64 live rows of 256, from the host in one packed copy, and from the device in a grouped one."""
    ctx = FillContext(raw_bs=64, padded_bs=256, raw_num_tokens=64, padded_num_tokens=256)
    for staged in (True, False):
        registry = CudaGraphBufferRegistry(max_bs=256, max_num_tokens=256, device=device)
        for i in range(NUM_SLOTS):
            registry.register_slot(
                GraphSlot(
                    name=f"slot{i}",
                    shape_fn=lambda bs, tokens: (bs,),
                    dtype=torch.int32,
                    axis="bs",
                    padding_policy=PaddingPolicy.ZERO if staged else PaddingPolicy.FILL_ONCE,
                    staged=staged,
                )
            )
        registry.freeze()
        batch: dict[str, Any] = {}
        for i in range(NUM_SLOTS):
            values = np.arange(64, dtype=np.int32)
            batch[f"slot{i}"] = values if staged else torch.from_numpy(values).to(device)
        us = host_us(lambda registry=registry, batch=batch: registry.fill_from(batch, ctx), device)  # type: ignore[misc]
        emit("fill", slots=NUM_SLOTS, raw=64, padded=256, source="host" if staged else "device", host_us=us)


def bench_replay(backend: Backend, device: torch.device) -> None:
    """Chains of small dependent ops."""
    x = torch.randn(4096, device=device)
    for num_nodes in (50, 135, 370, 900):

        def chain(num_nodes: int = num_nodes) -> torch.Tensor:
            y = x
            for _ in range(num_nodes):
                y = y + 1.0
            return y

        recording, _ = record(backend, chain)
        emit(
            "replay",
            nodes=recording.num_nodes,
            host_us=host_us(recording.replay, device, calls=20),
            device_us=device_us(recording.replay, device),
            bytes=recording.num_bytes,
        )


def third_of(qkv_TN: torch.Tensor) -> TensorSpec:
    return TensorSpec(shape=(qkv_TN.shape[0], qkv_TN.shape[1] // 3), dtype=qkv_TN.dtype)


class Stack:
    """Layers of projections around a break that is one launch, or around causal attention."""

    def __init__(self, num_layers: int, hidden: int, device: torch.device, *, attention: bool) -> None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.num_heads = max(1, hidden // 128)
        self.layers = [
            [torch.randn(hidden, n * hidden, device=device, dtype=dtype) * hidden**-0.5 for n in (3, 1, 1)]
            for _ in range(num_layers)
        ]
        run = self._attend if attention else self._multiply
        self.op = BreakOp("bench::break", run=run, outputs=lambda inputs: [third_of(inputs[0])])

    def _multiply(self, live: Any, inputs: Any, outputs: Any, site: int) -> None:
        q_TM, k_TM, _ = inputs[0].chunk(3, dim=-1)
        torch.mul(q_TM, k_TM, out=outputs[0])

    def _attend(self, live: Any, inputs: Any, outputs: Any, site: int) -> None:
        heads = (t.unflatten(-1, (self.num_heads, -1)).unsqueeze(0) for t in inputs[0].chunk(3, dim=-1))
        q, k, v = (t.transpose(1, 2) for t in heads)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        outputs[0].view(1, out.shape[2], self.num_heads, -1).copy_(out.transpose(1, 2))

    def forward(self, inputs: Inputs, scope: Scope) -> torch.Tensor:
        h_TM: torch.Tensor = inputs["h"]
        for i, (qkv, up, down) in enumerate(self.layers):
            spec = TensorSpec(shape=(h_TM.shape[0], qkv.shape[1]), dtype=h_TM.dtype)
            qkv_TN = torch.mm(h_TM, qkv, out=scope.bridge(self.op, 0, spec, h_TM))
            (a_TM,) = scope.call(self.op, qkv_TN, site=i)
            h_TM = h_TM + a_TM
            h_TM = h_TM + torch.relu(h_TM @ up) @ down
        return h_TM


def bench_breaks(backend: Backend, device: torch.device, args: argparse.Namespace) -> None:
    """The same stack captured whole, in segments, and compiled in pieces; and run eagerly."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    inputs = {"h": torch.randn(args.tokens, args.hidden, device=device, dtype=dtype)}
    for attention in (False, True):
        stack = Stack(args.layers, args.hidden, device, attention=attention)
        bridges = BridgePool(max_rows=args.tokens, device=device)
        captures: list[tuple[str, Capture, Backend | EagerBackend]] = [
            ("full", FullCapture(), backend),
            ("breakable", BreakableCapture(bridges), backend),
            ("piecewise", PiecewiseCapture(bridges, compiler_for(device)), backend),
            ("eager", FullCapture(), EagerBackend()),
        ]
        full_us = None
        for name, capture, where in captures:
            step = capture.capture(where, stack.forward, inputs, None)
            us = device_us(lambda step=step: step.replay(None), device, calls=5)  # type: ignore[misc]
            host = host_us(lambda step=step: step.replay(None), device, calls=4)  # type: ignore[misc]
            full_us = full_us or us
            emit(
                "stack",
                capture=name,
                break_is="attention" if attention else "one launch",
                layers=args.layers,
                tokens=args.tokens,
                device_us=us,
                over_full=us / full_us,
                host_us=host,
                host_us_per_break=host / args.layers if len(step.recordings) > 1 else None,
                nodes=sum(recording.num_nodes for recording in step.recordings),
            )


def bench_capture(backend: Backend) -> None:
    """Seconds and bytes per captured size, largest first."""
    for kind in KINDS:
        reports: list[CaptureReport] = []
        toy_rig(kind, buckets=(1, 2, 4, 8, 16), backend=backend).runner.capture_all(reports.append)
        for report in reports:
            emit(
                "capture",
                kind=kind,
                size=report.size,
                seconds=report.seconds,
                bytes=report.num_bytes,
                nodes=report.num_nodes,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=26)
    parser.add_argument("--tokens", type=int, default=2048 if torch.cuda.is_available() else 32)
    parser.add_argument("--hidden", type=int, default=1152 if torch.cuda.is_available() else 64)
    args = parser.parse_args()
    device = torch.device(args.device)
    backend: Backend = CudaBackend(device) if device.type == "cuda" else TapeBackend()
    emit("machine", device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", torch=torch.__version__)
    bench_fill(device)
    bench_replay(backend, device)
    bench_breaks(backend, device, args)
    bench_capture(backend)


if __name__ == "__main__":
    main()
