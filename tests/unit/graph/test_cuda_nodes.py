"""What is read from the nodes of a captured CUDA graph, by a driver that has one graph and no device."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace

import pytest

from playhead.graph.backends import cuda_nodes

OURS, FOREIGN, NO_ADDRESS = 0x7F00_0000_1000, 0x7F00_0000_2000, 0x7F00_0000_3000
SUCCESS, FAILURE = 0, 1
KERNEL, COPY = 0, 1


class Kernel:
    """A node with its parameters where the driver would have them: a table of places, and a block at each."""

    kind = KERNEL
    kern = 0

    def __init__(self, name: str, *blocks: bytes) -> None:
        self.name, self.func = name, id(self)
        self.blocks = [ctypes.create_string_buffer(block, len(block)) for block in blocks]
        places = [ctypes.addressof(block) for block in self.blocks]
        self.table = (ctypes.c_void_p * len(places))(*places)
        self.kernelParams = ctypes.addressof(self.table)


def driver_of(*nodes) -> SimpleNamespace:
    """The few calls of `cuda.bindings.driver` that are made."""
    by_handle = {node.func: node for node in nodes if node.kind == KERNEL}

    def parameter_info(handle, index):
        blocks = by_handle[handle].blocks
        return (SUCCESS, 0, len(blocks[index])) if index < len(blocks) else (FAILURE, 0, 0)

    return SimpleNamespace(
        CUgraph=int,
        CUgraphNodeType=SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=KERNEL),
        CUresult=SimpleNamespace(CUDA_SUCCESS=SUCCESS),
        CUpointer_attribute=SimpleNamespace(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR=0),
        cuGraphGetNodes=lambda graph, count=0: (SUCCESS, nodes[:count], len(nodes)),
        cuGraphNodeGetType=lambda node: (SUCCESS, node.kind),
        cuGraphKernelNodeGetParams=lambda node: (SUCCESS, node),
        cuFuncGetName=lambda handle: (SUCCESS, by_handle[handle].name.encode()),
        cuFuncGetParamInfo=parameter_info,
        cuPointerGetAttribute=lambda attribute, word: (SUCCESS if word in (OURS, FOREIGN) else FAILURE, word),
    )


@pytest.fixture
def found(monkeypatch):
    """The addresses that kernels of a graph with these nodes were given, by name."""

    def of(*nodes) -> dict[str, tuple[int, ...]]:
        graph = SimpleNamespace(raw_cuda_graph=lambda: 1)
        monkeypatch.setattr(cuda_nodes, "driver", driver_of(*nodes))
        assert cuda_nodes.num_graph_nodes(graph) == len(nodes)
        return {node.name: node.addresses for node in cuda_nodes.kernel_nodes(graph)}

    return of


def test_every_word_that_is_an_address_counts_wherever_it_stands(found):
    strides = struct.pack("<iiQQ", 4, 1152, OURS, NO_ADDRESS)
    copy = SimpleNamespace(kind=COPY)
    kernel = Kernel("row_kernel", struct.pack("<Q", FOREIGN), strides, struct.pack("<f", 1.0))
    assert found(kernel, copy) == {"row_kernel": (FOREIGN, OURS)}


def test_what_stands_where_torch_left_room_is_no_address(found):
    """Its kernels have arrays for 25 dims, and fill as many as there are."""
    elementwise = Kernel("_ZN2at6native18elementwise_kernelILi128ELi4EEEviT1_", struct.pack("<QQ", OURS, FOREIGN))
    product = Kernel("nvjet_sm90_tst_64x64_64x13_4x2_h_bz_TNT", struct.pack("<QQ", OURS, FOREIGN))
    assert found(elementwise, product) == {elementwise.name: (), product.name: (OURS, FOREIGN)}
