"""The safetensors format, read with bounds: eight bytes of length, a JSON header, then the tensors back to back.

The file is foreign. Before a byte of weights is read, the header is known to be small, every offset to lie inside the
file, and no two tensors to overlap; shapes are plain ints, so a product cannot wrap around.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterable
from pathlib import Path

import torch

from playhead.errors import CheckpointError
from playhead.models.checkpoint.bounded_json import parse_json
from playhead.models.checkpoint.sources import TensorInfo

MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 1 << 15
"""In one file. The largest checkpoints have 91,000 tensors in 163 shards."""

MAX_HEADER_VALUES = 16 * MAX_TENSORS
MAX_NAME_CHARS = 512
MAX_DIMS = 8

PART_BYTES = 16 << 20
"""How much of a tensor is on the host at a time, on its way to a device or to another dtype."""

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


class Staging:
    """Host memory that parts of tensors pass through, taken at first use and shared by all files of a checkpoint.

    Taking it anew for each tensor costs more than the copy does, and the allocator does not always give it back.
    """

    def __init__(self) -> None:
        self._bytes: torch.Tensor | None = None

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        if self._bytes is None:
            self._bytes = torch.empty(PART_BYTES, dtype=torch.uint8)
        return self._bytes.view(dtype)


class SafetensorsFile:
    """One file. Tensors are listed in the order they lie on disk."""

    def __init__(self, path: Path, staging: Staging) -> None:
        self._path, self._staging = path, staging
        header, self._data_start = _read_header(path)
        _check_metadata(path, header.pop("__metadata__", {}))
        entries = {name: _Entry(path, name, value) for name, value in header.items()}
        self._entries = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)))
        self._check_layout()
        self.tensors = {name: entry.info for name, entry in self._entries.items()}

    def _check_layout(self) -> None:
        """The tensors cover the data exactly: no overlap, no hole, nothing after the end."""
        num_bytes = self._path.stat().st_size - self._data_start
        end = 0
        for name, entry in self._entries.items():
            if entry.start != end:
                what = "overlaps the one before it" if entry.start < end else "leaves a hole before it"
                raise _damaged(self._path, f"tensor {name!r} {what}", "tensors back to back")
            end = entry.stop
        if end != num_bytes:
            raise _damaged(self._path, f"{num_bytes} bytes of data", f"the {end} its header describes")

    def read(self, name: str) -> torch.Tensor:
        info = self.tensors[name]
        tensor = torch.empty(info.shape, dtype=info.dtype)
        self.copy_to(name, tensor)
        return tensor

    def copy_to(self, name: str, target: torch.Tensor) -> None:
        """Straight from the file where the target is plain host memory of the file's dtype, else in small parts."""
        info, flat = self.tensors[name], target.view(-1)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._data_start + self._entries[name].start)
            if target.device.type == "cpu" and target.dtype == info.dtype:
                self._read_exactly(file, name, flat)
                return
            staging = self._staging.view(info.dtype)
            for part in torch.split(flat, staging.numel()):
                staged = staging[: part.numel()]
                self._read_exactly(file, name, staged)
                part.copy_(staged)

    def _read_exactly(self, file: io.FileIO, name: str, flat: torch.Tensor) -> None:
        view = flat.view(torch.uint8).numpy().data
        while view:
            num_read = file.readinto(view)
            if not num_read:
                raise _damaged(self._path, f"the file ends inside tensor {name!r}", "the file as it was opened")
            view = view[num_read:]


class _Entry:
    """One line of the header, checked on its own."""

    def __init__(self, path: Path, name: str, value: object) -> None:
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise _damaged(path, f"a tensor's name of {len(name)} characters", f"1 to {MAX_NAME_CHARS}")
        match value:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, stop]}:
                pass
            case _:
                raise _damaged(path, f"tensor {name!r} is described as {value!r:.200}", "dtype, shape and data_offsets")
        if dtype not in DTYPES:
            raise _damaged(path, f"tensor {name!r} has dtype {dtype!r:.40}", f"one of {', '.join(DTYPES)}")
        if not _are_sizes((*shape, start, stop)) or len(shape) > MAX_DIMS:
            raise _damaged(
                path, f"tensor {name!r} has shape {shape!r:.200}", f"at most {MAX_DIMS} sizes, none negative"
            )
        self.start, self.stop = start, stop
        num_bytes = math.prod(shape) * DTYPES[dtype].itemsize
        if stop - start != num_bytes:
            found = f"tensor {name!r} has {stop - start} bytes for shape {shape!r:.200} of {dtype}"
            raise _damaged(path, found, f"{num_bytes} bytes")
        self.info = TensorInfo(shape=tuple(shape), dtype=DTYPES[dtype], num_bytes=num_bytes)


def _are_sizes(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


def _read_header(path: Path) -> tuple[dict[str, object], int]:
    num_bytes = path.stat().st_size
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
        header = parse_json(raw, max_values=MAX_HEADER_VALUES, unique_keys=True)
    except ValueError as error:
        raise _damaged(path, f"a header that is not JSON ({error})", "a JSON object") from None
    if not isinstance(header, dict):
        raise _damaged(path, f"a header that is a {type(header).__name__}", "a JSON object")
    return header, 8 + length


def _check_metadata(path: Path, metadata: object) -> None:
    """Texts by name. Nothing here reads them, but other readers refuse anything else."""
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, f"__metadata__ {metadata!r:.80}", "texts by name")


def _damaged(path: Path, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(path.name, found, wanted, "The file is damaged or was made to harm; download it again.")
