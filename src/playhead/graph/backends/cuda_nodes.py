"""What torch does not tell of a captured CUDA graph: its nodes, and the device addresses its kernels were given.

Needs `cuda-bindings`, which CUDA builds of torch bring along. Without it the answers are None and empty.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

try:
    from cuda.bindings import driver
except ImportError:
    driver = None

LOWEST_DEVICE_ADDRESS = 1 << 32  # smaller numbers in a parameter block are sizes and strides
TORCH = "2at6native"  # in the names of torch's own kernels, as a compiler writes `at::native`


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelNode:
    """One kernel of a graph with the device addresses found in its parameters."""

    name: str
    addresses: tuple[int, ...]


def _nodes(graph: torch.cuda.CUDAGraph) -> list[Any]:
    raw = driver.CUgraph(graph.raw_cuda_graph())
    _, _, count = driver.cuGraphGetNodes(raw)
    return list(driver.cuGraphGetNodes(raw, count)[1]) if count else []


def num_graph_nodes(graph: torch.cuda.CUDAGraph) -> int | None:
    """Nodes in the graph, or None where the driver cannot be asked."""
    return None if driver is None else len(_nodes(graph))


def begin_capture(stream: torch.cuda.Stream) -> bool:
    """Whether the driver captures from now on what this thread issues on the stream."""
    if driver is None:
        return False
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    return bool(driver.cuStreamBeginCapture(stream.cuda_stream, mode)[0] == driver.CUresult.CUDA_SUCCESS)


def kernel_nodes(graph: torch.cuda.CUDAGraph) -> list[KernelNode]:
    """The kernels of the graph. Parameters are blocks of bytes: every aligned word that is a device address counts.

    Parameters of torch's own kernels are left out: their blocks have room for the sizes of 25 dims, and the part that a
    tensor with fewer dims does not use holds leftovers, addresses among them. Their tensors are in the log of ops.
    """
    if driver is None:
        return []
    found = []
    for node in _nodes(graph):
        if driver.cuGraphNodeGetType(node)[1] != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        params = driver.cuGraphKernelNodeGetParams(node)[1]
        name, blocks = _name_and_parameters(params)
        addresses = () if TORCH in name else tuple(word for block in blocks for word in _device_addresses(block))
        found.append(KernelNode(name=name, addresses=addresses))
    return found


def _name_and_parameters(params: Any) -> tuple[str, list[bytes]]:
    by_function = bool(int(params.func))
    handle = params.func if by_function else params.kern
    name = (driver.cuFuncGetName if by_function else driver.cuKernelGetName)(handle)[1]
    parameter_info = driver.cuFuncGetParamInfo if by_function else driver.cuKernelGetParamInfo
    blocks: list[bytes] = []
    table = int(params.kernelParams)
    while table:
        status, _, num_bytes = parameter_info(handle, len(blocks))
        if status != driver.CUresult.CUDA_SUCCESS:
            break
        place = ctypes.c_void_p.from_address(table + len(blocks) * ctypes.sizeof(ctypes.c_void_p)).value
        blocks.append(ctypes.string_at(place or 0, num_bytes))
    return (name or b"?").decode(), blocks


def _device_addresses(block: bytes) -> Iterator[int]:
    for at in range(0, len(block) - 7, 8):
        word = int.from_bytes(block[at : at + 8], "little")
        if word >= LOWEST_DEVICE_ADDRESS:
            attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
            if driver.cuPointerGetAttribute(attribute, word)[0] == driver.CUresult.CUDA_SUCCESS:
                yield word
