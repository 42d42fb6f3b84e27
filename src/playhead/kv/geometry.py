"""What one token costs in each layer, and which layers share pages.

Layers with the same window live and die together, so they form a group: one full group (window `None`, possibly without
layers) and one window group per distinct window. Shapes may differ inside a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from playhead.errors import ConfigError


class KVDtype(Enum):
    """Element type of keys and values; the pool turns it into a torch dtype."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8_E4M3 = "float8_e4m3fn"

    @property
    def itemsize(self) -> int:
        """Bytes of one element: 2 for BFLOAT16."""
        return {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKV:
    """Keys and values of one layer: what a token leaves there, and for how long.

    `window` counts the keys a query sees, itself included; `None` sees everything.
    One kv head of 256 in bfloat16 costs 1024 bytes per token.
    """

    window: int | None
    num_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    dtype: KVDtype = KVDtype.BFLOAT16

    def __post_init__(self) -> None:
        sizes = {"num_kv_heads": self.num_kv_heads, "k_head_dim": self.k_head_dim, "v_head_dim": self.v_head_dim}
        if self.window is not None:
            sizes["window"] = self.window
        for field, value in sizes.items():
            if value < 1:
                raise ConfigError(f"LayerKV.{field}: found {value}; wanted at least 1. Read it from the model's config")

    @property
    def k_bytes_per_token(self) -> int:
        return self.num_kv_heads * self.k_head_dim * self.dtype.itemsize

    @property
    def v_bytes_per_token(self) -> int:
        return self.num_kv_heads * self.v_head_dim * self.dtype.itemsize

    @property
    def bytes_per_token(self) -> int:
        return self.k_bytes_per_token + self.v_bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share page tables and a window. `layer_ids[i]` is the model's number of `layers[i]`."""

    name: str
    window: int | None
    layer_ids: tuple[int, ...]
    layers: tuple[LayerKV, ...]

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token takes in all layers of the group; 0 for a full group without layers."""
        return sum(layer.bytes_per_token for layer in self.layers)

    def live_tokens(self, context_tokens: int) -> int:
        """How many tokens of a context a later token can still attend to, itself included."""
        return context_tokens if self.window is None else min(self.window, context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGeometry:
    """The model's layers as groups. `full` is the identity space; it has no layers in an all-window model."""

    page_size: int
    full: KVGroup
    windows: tuple[KVGroup, ...]

    @classmethod
    def of(cls, layers: Sequence[LayerKV], page_size: int) -> KVGeometry:
        """Groups of the layers, windows in ascending order.

        Gemma-3-1B (26 layers, SSSSSF, window 512) gives 4 full layers and 22 window layers.
        """
        if page_size < 1:
            raise ConfigError(f"kv.page_size: found {page_size}; wanted at least 1. 16 suits most kernels")
        if not layers:
            raise ConfigError("kv geometry: found no layers; wanted at least one. Read them from the model's config")
        windows = sorted({layer.window for layer in layers if layer.window is not None})
        return cls(
            page_size=page_size,
            full=_group("full", None, layers),
            windows=tuple(_group(f"window{window}", window, layers) for window in windows),
        )

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """All groups; index 0 is the full group, whatever the model."""
        return (self.full, *self.windows)

    @property
    def layers_mapping(self) -> dict[int, tuple[int, int]]:
        """For each layer its index in its group, and the group's index."""
        return {
            layer: (index, group_index)
            for group_index, group in enumerate(self.groups)
            for index, layer in enumerate(group.layer_ids)
        }

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token that every layer still keeps: what uniform paging pays for each one."""
        return sum(group.bytes_per_token for group in self.groups)

    def bytes_per_request(self, context_tokens: int) -> int:
        """The least a request of this length can occupy: full layers keep all of it, window layers their window."""
        return sum(group.bytes_per_token * group.live_tokens(context_tokens) for group in self.groups)


def _group(name: str, window: int | None, layers: Sequence[LayerKV]) -> KVGroup:
    ids = tuple(i for i, layer in enumerate(layers) if layer.window == window)
    return KVGroup(name=name, window=window, layer_ids=ids, layers=tuple(layers[i] for i in ids))


def pages_outside_window(num_tokens: int, window: int, page_size: int) -> int:
    """How many leading pages no later token of this request can attend to.

    The next token stands at `num_tokens` and sees itself and the `window - 1` tokens before it.
    With window 4, page size 2 and 7 tokens written:

        pages    [0 1] [2 3] [4 5] [6 .]
        the token at 7 sees      4 5 6 7     -> 2 pages can go
    """
    return max(0, num_tokens - window + 1) // page_size


def window_frontier(num_tokens: int, window: int, page_size: int) -> int:
    """The first page a running request keeps in a window group.

    A finished request is worth caching only if a later one can continue at its last whole page, so where windows are
    whole pages the frontier follows page borders: it waits for the page to fill before it lets the oldest one go.
    Otherwise it is exact, because waiting would keep more than window + chunk + page. With window 4 and page size 2,
    7 tokens keep pages from 1 on (a hit at 6 needs tokens 3 to 5), and 8 tokens keep pages from 2 on.
    """
    if window % page_size == 0:
        num_tokens -= num_tokens % page_size
    return pages_outside_window(num_tokens, window, page_size)


def next_slide(frontier: int, window: int, page_size: int) -> int:
    """The fewest tokens at which `window_frontier` is past `frontier`: 8 past 1 with window 4 and page size 2."""
    num_tokens = (frontier + 1) * page_size + window - 1
    return num_pages_for(num_tokens, page_size) * page_size if window % page_size == 0 else num_tokens


def num_pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold this many tokens: 17 tokens take 2 pages of 16."""
    return -(-num_tokens // page_size)
