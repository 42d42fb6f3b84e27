"""The GGUF format, read with bounds: typed metadata, a table of tensors, then their blocks.

The file is foreign, and a count or length in it can be any 64-bit number. Nothing is allocated or looped over before
it is known to fit into what is left of the file.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from playhead.errors import CheckpointError
from playhead.models.checkpoint.gguf_blocks import BLOCK_SIZE, SIMPLE_TYPES, Unpacked, unpack_blocks

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16

# A file can announce any count that its length allows, and a sparse file of a terabyte takes no room on a disk.
MAX_TENSORS = 1 << 14
MAX_METADATA_ENTRIES = 1 << 16
MAX_ARRAY_ITEMS = 1 << 21  # of all arrays together; 202,000 tokens and their 440,000 merges have 1.1 million
MAX_STRING_BYTES = 1 << 24
MAX_METADATA_BYTES = 1 << 28  # and the table of tensors; nothing of it is looked for beyond
MAX_NAME_CHARS = 512

PIECE_BYTES = 1 << 24  # of a file, unpacked at once; as float32 that is up to a quarter of a gigabyte

SCALARS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
STRING, ARRAY = 8, 9

# A tensor entry is at least a name's length, a count of dims, one dim, a type and an offset.
MIN_TENSOR_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8
MIN_METADATA_ENTRY_BYTES = 8 + 4 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Where a tensor lies and how its values are packed. `shape` is outermost first, as torch has it."""

    shape: tuple[int, ...]
    type_id: int
    start: int
    num_bytes: int


class GgufFile:
    """Metadata and tensor table of one file; blocks are read when asked for.

    The file is opened once and stays open: whatever takes its place later, tensors come from what was checked here.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._quants = path, _quants(path)
        # Unbuffered, and read by position: a map of a file that shrinks would end the process.
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        num_bytes = os.fstat(self._handle).st_size
        if num_bytes == 0:
            raise _damaged(path, "an empty file", "a GGUF header")
        # The head alone: a map of a whole sparse file asks for an address space that may not be there.
        with mmap.mmap(self._handle, min(num_bytes, MAX_METADATA_BYTES), access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(path, data)
            if cursor.take(4) != MAGIC:
                raise _damaged(path, "another format", "a file that begins with 'GGUF'")
            version = cursor.scalar("u4")
            if version not in VERSIONS:
                raise _damaged(path, f"version {version}", f"one of {VERSIONS}")
            num_tensors = cursor.count(MIN_TENSOR_ENTRY_BYTES, at_most=MAX_TENSORS)
            num_entries = cursor.count(MIN_METADATA_ENTRY_BYTES, at_most=MAX_METADATA_ENTRIES)
            self.metadata: dict[str, Any] = {}
            for _ in range(num_entries):
                self._add_metadata(cursor.name(), cursor.value(cursor.scalar("u4")))
            entries = [self._entry(cursor) for _ in range(num_tensors)]
            alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
            if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT:
                raise _damaged(path, f"alignment {alignment!r}", f"1 to {MAX_ALIGNMENT} bytes")
            data_start = -(-cursor.offset // alignment) * alignment
            self.tensors = self._place(entries, data_start, num_bytes)

    def _add_metadata(self, key: str, value: object) -> None:
        if key in self.metadata:
            raise _damaged(self._path, f"metadata {key!r:.80} twice", "each key once")
        self.metadata[key] = value

    def _entry(self, cursor: _Cursor) -> tuple[str, GgufTensor]:
        name, num_dims = cursor.name(), cursor.scalar("u4")
        if not 1 <= num_dims <= MAX_DIMS:
            raise _damaged(self._path, f"tensor {name!r:.80} with {num_dims} dims", f"1 to {MAX_DIMS}")
        shape = tuple(int(cursor.scalar("u8")) for _ in range(num_dims))[::-1]
        type_id, start = cursor.scalar("u4"), cursor.scalar("u8")
        values_per_block, bytes_per_block = self._quants.block_of(name, type_id)
        if min(shape) < 1 or shape[-1] % values_per_block:
            raise _damaged(self._path, f"tensor {name!r:.80} of shape {shape}", f"rows of whole {values_per_block}s")
        num_bytes = math.prod(shape) // values_per_block * bytes_per_block
        return name, GgufTensor(shape=shape, type_id=type_id, start=start, num_bytes=num_bytes)

    def _place(self, entries: list[tuple[str, GgufTensor]], data_start: int, file_bytes: int) -> dict[str, GgufTensor]:
        """Tensors in the order they lie, at offsets in the file, none past its end and no two over each other."""
        tensors: dict[str, GgufTensor] = {}
        end = 0
        for name, entry in sorted(entries, key=lambda item: item[1].start):
            if name in tensors:
                raise _damaged(self._path, f"tensor {name!r:.80} twice", "each name once")
            if entry.start < end:
                raise _damaged(self._path, f"tensor {name!r:.80} overlaps the one before it", "tensors side by side")
            end = entry.start + entry.num_bytes
            if data_start + end > file_bytes:
                found = f"tensor {name!r:.80} ends at byte {data_start + end} of {file_bytes}"
                raise _damaged(self._path, found, "a complete file")
            start = data_start + entry.start
            tensors[name] = GgufTensor(shape=entry.shape, type_id=entry.type_id, start=start, num_bytes=entry.num_bytes)
        return tensors

    def read(self, name: str, rows: slice | None = None) -> np.ndarray[Any, Any]:
        """The tensor, or some of its rows, as float32 numbers. A piece at a time: unpacking takes several copies."""
        tensor = self.tensors[name]
        # One row of a vector is no whole block.
        num_rows, row_shape = (1, tensor.shape) if len(tensor.shape) == 1 else (tensor.shape[0], tensor.shape[1:])
        first, stop, _ = (slice(None) if rows is None or num_rows == 1 else rows).indices(num_rows)
        values = np.empty((stop - first, *row_shape), dtype=np.float32)
        row_bytes = tensor.num_bytes // num_rows
        rows_per_piece = max(1, PIECE_BYTES // row_bytes)
        for start in range(first, stop, rows_per_piece):
            count = min(rows_per_piece, stop - start)
            packed = self._bytes(name, tensor.start + start * row_bytes, count * row_bytes)
            unpacked = self._quants.dequantise(packed.reshape(count, *row_shape[:-1], -1), tensor.type_id)
            values[start - first : start - first + count] = unpacked.reshape(count, *row_shape)
        if len(tensor.shape) > 1:
            return values
        return values[0] if rows is None else values[0, rows]

    def _bytes(self, name: str, start: int, num_bytes: int) -> np.ndarray[Any, Any]:
        packed = np.empty(num_bytes, dtype=np.uint8)
        done, into = 0, packed.data
        while done < num_bytes:
            # The system reads at most 2 GiB at once.
            num_read = os.preadv(self._handle, [into[done:]], start + done)
            if num_read == 0:
                raise _damaged(self._path, f"the file ends inside tensor {name!r}", "the file as it was opened")
            done += num_read
        return packed

    def blocks(self, name: str, rows: slice | None = None) -> Unpacked | None:
        """The integers of a matrix, or of some of its rows, with their scales and offsets; None for other types."""
        if not self.has_blocks(name):
            return None
        tensor, type_name = self.tensors[name], self.type_name(name)
        num_rows, num_inputs = tensor.shape
        first, stop, _ = (rows or slice(None)).indices(num_rows)
        row_bytes = tensor.num_bytes // num_rows
        packed = self._bytes(name, tensor.start + first * row_bytes, (stop - first) * row_bytes)
        found = unpack_blocks(packed.reshape((stop - first) * num_inputs // BLOCK_SIZE, -1), type_name)
        return Unpacked(*(part.reshape(stop - first, -1) for part in found))

    def has_blocks(self, name: str) -> bool:
        """Whether `blocks` gives anything. Nothing is read."""
        return self.type_name(name) in SIMPLE_TYPES and len(self.tensors[name].shape) == 2

    def type_name(self, name: str) -> str:
        """How a tensor is packed, as the format calls it: F16, Q4_K."""
        return self._quants.name_of(self.tensors[name].type_id)


class _Quants:
    """The `gguf` package's knowledge of packed types."""

    def __init__(self, path: Path, gguf: Any) -> None:
        self._path, self._gguf = path, gguf
        self._blocks: dict[int, tuple[int, int]] = {}

    def block_of(self, name: str, type_id: int) -> tuple[int, int]:
        """Values and bytes of one block, for types that can be unpacked."""
        if type_id in self._blocks:
            return self._blocks[type_id]
        try:
            kind = self._gguf.GGMLQuantizationType(type_id)
            values, num_bytes = self._gguf.GGML_QUANT_SIZES[kind]
            self.dequantise(np.zeros((1, num_bytes), dtype=np.uint8), type_id)
        except (ValueError, KeyError, NotImplementedError):
            found = f"tensor {name!r:.80} of type {self.name_of(type_id)}"
            raise _damaged(self._path, found, "a type the gguf package unpacks") from None
        self._blocks[type_id] = values, num_bytes
        return values, num_bytes

    def name_of(self, type_id: int) -> str:
        known = {int(kind): kind.name for kind in self._gguf.GGMLQuantizationType}
        return str(known.get(type_id, type_id))

    def dequantise(self, packed: np.ndarray[Any, Any], type_id: int) -> np.ndarray[Any, Any]:
        kind = self._gguf.GGMLQuantizationType(type_id)
        if kind in (self._gguf.GGMLQuantizationType.F32, self._gguf.GGMLQuantizationType.F16):
            packed = packed.view(np.float32 if kind == self._gguf.GGMLQuantizationType.F32 else np.float16)
        unpacked: np.ndarray[Any, Any] = self._gguf.quants.dequantize(packed, kind)
        return unpacked.astype(np.float32, copy=False)


def _quants(path: Path) -> _Quants:
    try:
        import gguf
        import gguf.quants
    except ImportError:
        raise CheckpointError(
            path.name, "this is a GGUF file, and the gguf package is not installed", "", "Install playhead[gguf]."
        ) from None
    return _Quants(path, gguf)


class _Cursor:
    """Reads forward, never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self.offset = path, data, 0
        self._array_items_left = MAX_ARRAY_ITEMS

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self._data) - self.offset:
            found = f"{num_bytes} bytes announced at byte {self.offset} of {len(self._data)}"
            raise _damaged(self._path, found, "lengths inside the file")
        self.offset += num_bytes
        return self._data[self.offset - num_bytes : self.offset]

    def scalar(self, code: str) -> Any:
        dtype = np.dtype(code).newbyteorder("<")
        return np.frombuffer(self.take(dtype.itemsize), dtype=dtype)[0].item()

    def count(self, min_bytes_each: int, *, at_most: int) -> int:
        """How many items follow; refused if they cannot fit or are more than any model has."""
        (number,) = struct.unpack("<Q", self.take(8))
        if number > at_most:
            raise _damaged(self._path, f"{number} items announced at byte {self.offset}", f"at most {at_most}")
        if number * min_bytes_each > len(self._data) - self.offset:
            found = f"{number} items announced at byte {self.offset} of {len(self._data)}"
            raise _damaged(self._path, found, "counts that fit into the file")
        return int(number)

    def name(self) -> str:
        name = self.string(at_most=4 * MAX_NAME_CHARS)
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise _damaged(self._path, f"a name of {len(name)} characters", f"1 to {MAX_NAME_CHARS}")
        return name

    def string(self, *, at_most: int = MAX_STRING_BYTES) -> str:
        raw = self.take(self.count(1, at_most=at_most))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._not_text(self.offset) from None

    def value(self, type_id: int) -> Any:
        if type_id in SCALARS:
            return self.scalar(SCALARS[type_id])
        if type_id == STRING:
            return self.string()
        if type_id == ARRAY:
            return self._array(self.scalar("u4"))
        raise _damaged(self._path, f"metadata of type {type_id}", "a type of the format")

    def _array(self, type_id: int) -> list[Any]:
        if type_id != STRING and type_id not in SCALARS:
            raise _damaged(self._path, f"an array of type {type_id}", "an array of numbers or strings")
        dtype = np.dtype(SCALARS.get(type_id, "u8")).newbyteorder("<")
        number = self.count(dtype.itemsize, at_most=self._array_items_left)
        self._array_items_left -= number
        if type_id == STRING:
            return self._strings(number)
        values: list[Any] = np.frombuffer(self.take(number * dtype.itemsize), dtype=dtype).tolist()
        return values

    def _strings(self, number: int) -> list[str]:
        """As `string` reads them, without three calls for each: a vocabulary has half a million."""
        end, data, length_at = self.offset, self._data, struct.Struct("<Q").unpack_from
        size, strings = len(data), list[str]()
        try:
            for _ in range(number):
                start = end + 8
                end = start + length_at(data, end)[0]
                if end > size:
                    raise _damaged(self._path, f"a string that ends at byte {end} of {size}", "lengths inside the file")
                strings.append(data[start:end].decode())
        except struct.error:
            raise _damaged(self._path, f"a string at byte {end} of {size}", "lengths inside the file") from None
        except UnicodeDecodeError:
            raise self._not_text(end) from None
        self.offset = end
        return strings

    def _not_text(self, end: int) -> CheckpointError:
        return _damaged(self._path, f"bytes that are not UTF-8 before byte {end}", "UTF-8 text")


def _damaged(path: Path, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(path.name, found, wanted, "The file is damaged or of a kind not read here; get it again.")
