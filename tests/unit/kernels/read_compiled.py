"""What can be read from a compiled kernel: what it takes, what it loads early, where its warps wait for each other."""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from pathlib import Path

import triton


def facts_of(binary) -> dict[str, object]:
    """All of it, by name."""
    registers, stack_bytes = usage(binary)
    return {
        "registers": registers,
        "stack_bytes": stack_bytes,
        "shared_bytes": binary.metadata.shared,
        "volatile_loads": volatile_loads(binary),
        "matrix_depths": matrix_depths(binary),
        "loads_before_wait": loads_before_wait(binary),
        "barriers_before_product": barriers_before_product(binary),
        "barriers_behind_wait": barriers_behind_wait(binary),
        "barriers_of_merge": barriers_of_merge(binary),
        "barriers_before_overwriting": barriers_before_overwriting(binary),
        "layouts_of_sums": layouts_of_sums(binary),
    }


def usage(binary) -> tuple[int, int]:
    """Registers and bytes of local memory (spills) of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run([tool, "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    return int(registers), int(stack)


def volatile_loads(binary) -> list[int]:
    """How many numbers each load has of memory that other programs write meanwhile."""
    shapes = re.findall(r"tt\.load .*isVolatile.* : tensor<((?:\d+x)+)!", binary.asm["ttgir"])
    return [math.prod(int(size) for size in shape.split("x") if size) for shape in shapes]


def loads_before_wait(binary) -> int:
    """How many loads a thread starts before it waits for the kernel in front."""
    before, _, _ = binary.asm["ptx"].partition("griddepcontrol.wait")
    return len(re.findall(r"ld\.global|cp\.async\.c[ag]", before))


def barriers_before_product(binary) -> int:
    """How often warps wait for each other between the wait for the kernel in front and the first product."""
    _, _, behind = binary.asm["ptx"].partition("griddepcontrol.wait")
    before, product, _ = behind.partition("mma.sync")
    return before.count("bar.sync") if product else 0


def barriers_behind_wait(binary) -> int:
    """How often warps wait for each other once the kernel in front has ended."""
    _, _, behind = binary.asm["ptx"].partition("griddepcontrol.wait")
    return behind.count("bar.sync")


def barriers_of_merge(binary) -> int | None:
    """How often warps wait for each other while they load and add up what other programs left, and right behind."""
    blocks = re.split(r"^\$L__BB", binary.asm["ptx"], flags=re.MULTILINE)
    merging = [i for i, block in enumerate(blocks) if "ld.global.cg" in block]
    return sum(blocks[i].count("bar.sync") for i in {*merging, *(i + 1 for i in merging)}) if merging else None


def barriers_before_overwriting(binary) -> int:
    """How often warps wait for each other between what they last loaded of others' parts and what they store then."""
    _, _, behind = binary.asm["ptx"].rpartition("ld.global.cg")
    return behind[: behind.find("st.global")].count("bar.sync")


def matrix_depths(binary) -> list[int]:
    """How many inputs the matrix instructions add up at a time."""
    return sorted({int(depth) for depth in re.findall(r"mma\S*\.m\d+n\d+k(\d+)\.", binary.asm["ptx"])})


def layouts_of_sums(binary) -> list[str]:
    """How the numbers of each sum over a row lie in threads: what its order follows from."""
    code = binary.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    return [layouts[name] for name in re.findall(r"\}\) : \(tensor<\w+, (#\w+)>\) -> (?:f32|tensor<)", code)]
