"""One safetensors file, read by the `safetensors` library.

The library maps the file and checks its header: lengths, types, offsets inside the file, no overlap, no hole. This
module refuses what the library lets through: headers of more than 32 MiB or 32,768 tensors, a name that appears twice,
names and shapes no model has, types torch cannot compute with.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from playhead.errors import CheckpointError
from playhead.models.checkpoint.bounded_json import parse_json
from playhead.models.checkpoint.sources import Part, TensorInfo

MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 1 << 15
"""In one file. The largest checkpoints have 91,000 tensors in 163 shards."""

MAX_HEADER_VALUES = 16 * MAX_TENSORS
MAX_NAME_CHARS = 512
MAX_DIMS = 8

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class SafetensorsFile:
    """One file. Tensors are listed in the order they lie on disk, and read as views of the mapped file."""

    def __init__(self, path: Path) -> None:
        self._path, self._num_bytes = path, path.stat().st_size
        _check_header(path, self._num_bytes)
        self._file = _mapped(path)
        self.tensors = {name: self._info(name) for name in self._file.offset_keys()}

    def _info(self, name: str) -> TensorInfo:
        entry = self._file.get_slice(name)
        shape, dtype = tuple(entry.get_shape()), entry.get_dtype()
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise _damaged(self._path, f"a tensor's name of {len(name)} characters", f"1 to {MAX_NAME_CHARS}")
        if dtype not in DTYPES:
            raise _damaged(self._path, f"tensor {name!r} has dtype {dtype!r}", f"one of {', '.join(DTYPES)}")
        if len(shape) > MAX_DIMS:
            raise _damaged(self._path, f"tensor {name!r} has a shape of {len(shape)} dims", f"at most {MAX_DIMS}")
        return TensorInfo(shape=shape, dtype=DTYPES[dtype], num_bytes=math.prod(shape) * DTYPES[dtype].itemsize)

    def read(self, name: str, part: Part | None = None) -> torch.Tensor:
        """The tensor, or a part of it. The memory is the file's own: copy it, and do not write to it."""
        # Reading a mapped page that the file no longer has would end the process with a signal.
        if (num_bytes := self._path.stat().st_size) < self._num_bytes:
            raise _damaged(self._path, f"{num_bytes} bytes", f"the {self._num_bytes} it had when it was opened")
        tensor: torch.Tensor = self._file.get_tensor(name) if part is None else self._file.get_slice(name)[part.index]
        return tensor


def _check_header(path: Path, num_bytes: int) -> None:
    """Refuse a header that is too large to be parsed, by the library too, or that says a name twice."""
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _damaged(path, f"{num_bytes} bytes", "a header length of 8 bytes")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(MAX_HEADER_BYTES, num_bytes - 8):
            found = f"a header of {length} bytes in a file of {num_bytes}"
            raise _damaged(path, found, f"at most {MAX_HEADER_BYTES} bytes, inside the file")
        raw = file.read(length)
    # Each tensor is a table; the file and its metadata are two more. Counted here, a million are refused unparsed.
    if (num_tensors := raw.count(b"{") - 2) > MAX_TENSORS:
        raise _damaged(path, f"{num_tensors} tensors or more", f"at most {MAX_TENSORS}")
    try:
        # Of a name that appears twice the library takes the last entry; another reader may take the first.
        parse_json(raw, max_values=MAX_HEADER_VALUES, unique_keys=True)
    except ValueError as error:
        raise _damaged(path, f"a header that is not JSON ({error})", "a JSON object") from None


def _mapped(path: Path) -> Any:
    """The library's view of the file; its stubs have no types for what is used here."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, RuntimeError, MemoryError) as error:  # the last three: torch could not map it
        raise _damaged(path, f"{error!s:.300}", "a safetensors file that can be mapped") from None


def _damaged(path: Path, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(path.name, found, wanted, "The file is damaged or was made to harm; download it again.")
