"""What each part of a decoder is told about itself. No torch here: planning reads these too."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class NormKind(Enum):
    """How a row is normalised. RMS1P multiplies by 1 + weight, so an untrained weight of zero is the identity."""

    RMS = "rms"
    RMS1P = "rms1p"
    LAYERNORM = "layernorm"


class QKNorm(Enum):
    """What queries and keys are normalised over before rope: nothing, each head, or the whole projection."""

    NONE = "none"
    HEAD = "head"
    FULL = "full"


class Activation(Enum):
    """What is done to the gate before it multiplies the up projection."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class StoredAs(Enum):
    """How a checkpoint stores the matrices of linear maps."""

    PLAIN = "plain"
    """A number for each weight."""
    BLOCKS = "blocks"
    """Blocks of small integers with a scale, some of the matrices at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    kind: NormKind
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Slow frequencies are divided by `factor`, fast ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Frequencies blend between kept and divided over a ramp; cos and sin grow by `attention_factor`."""

    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorScaling:
    """Each frequency is divided by its own factor, as GGUF files of Llama 3 store them."""

    factors: tuple[float, ...]


Scaling = LinearScaling | Llama3Scaling | YarnScaling | FactorScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """A rotation of the first `rotary_dim` dims of every head.

    `interleaved` pairs dims (0, 1), (2, 3) ...; otherwise dim i pairs with i + rotary_dim / 2.
    """

    theta: float
    rotary_dim: int
    interleaved: bool = False
    scaling: Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    size: int
    activation: Activation
    has_bias: bool = False
    output_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Experts chosen by the `top_k` largest router logits and weighted by a softmax over those alone.

    Each is a clamped SwiGLU: `(up + 1) * gate * sigmoid(alpha * gate)`, gate at most and up within the limit.
    """

    num_experts: int
    top_k: int
    size: int
    swiglu_alpha: float
    swiglu_limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """One layer's attention. `window` counts the keys a query sees, itself included; `None` sees everything."""

    window: int | None
    num_heads: int
    num_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    scale: float
    rope: RopeSpec | None
    softcap: float | None = None
    has_sinks: bool = False
    qk_norm: QKNorm = QKNorm.NONE
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    output_scale: float = 1.0
    qkv_sizes: list[int] = field(init=False, hash=False)
    """The widths of all heads of q, of k and of v, in the order in which one projection packs them."""

    def __post_init__(self) -> None:
        kv_heads = self.num_kv_heads
        sizes = [self.num_heads * self.k_head_dim, kv_heads * self.k_head_dim, kv_heads * self.v_head_dim]
        object.__setattr__(self, "qkv_sizes", sizes)  # frozen, so not by `=`

    @property
    def output_size(self) -> int:
        return self.num_heads * self.v_head_dim
