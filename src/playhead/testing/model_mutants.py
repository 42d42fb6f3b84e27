"""Bugs in how checkpoints are read and engines are sized."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import playhead.engine.config
import playhead.engine.memory
import playhead.layers.moe
import playhead.models.build
import playhead.models.checkpoint.directory
import playhead.models.checkpoint.fill
import playhead.models.checkpoint.gguf_model
import playhead.models.checkpoint.hub
import playhead.models.rope_config
import playhead.models.text.gguf_vocab
from playhead.engine.config import EngineConfig
from playhead.kv.geometry import KVGeometry
from playhead.kv.plan import KVLimits
from playhead.layers.experts import Experts
from playhead.layers.linear import PlainLinear, PlainWeights
from playhead.layers.shard import WHOLE, Shard
from playhead.models.checkpoint.pieces import Piece
from playhead.models.checkpoint.sources import Part, TensorSource
from playhead.models.config import ConfigReader, Range
from playhead.models.decoder import Decoder
from playhead.models.families import FAMILIES
from playhead.models.family import FULL_LAYER, Family, rope_everywhere
from playhead.models.rope_config import NEW, RopeTable
from playhead.models.spec import ModelSpec
from playhead.settings import Declared, Refused
from playhead.testing.mutant import Mutant, Patch, mutant, swapped


@mutant(
    "the new name of rope wins",
    source="found here: rope_scaling beside rope_parameters was ignored",
    killed_by=("rope rules",),
)
def new_rope_name_wins() -> Patch:
    read = playhead.models.rope_config._only_table

    def new_first(family: Family, config: ConfigReader) -> RopeTable:
        table, new = read(family, config), config.table_or_none(NEW)
        return table if new is None else replace(table, values=new)

    return swapped(playhead.models.rope_config, "_only_table", new_first)


@mutant(
    "trained context of the table alone",
    source="found here: a context outside the rope table was ignored",
    killed_by=("rope rules",),
)
def trained_context_of_the_table_alone() -> Patch:
    read = playhead.models.rope_config._only_table

    def inner(family: Family, config: ConfigReader) -> RopeTable:
        return replace(read(family, config), original_context=None)

    return swapped(playhead.models.rope_config, "_only_table", inner)


@mutant(
    "layer_types of every family",
    source="found here: layer_types changed llama's logits",
    killed_by=("keys a family ignores",),
)
def layer_types_of_every_family() -> Patch:
    def all_full(config: ConfigReader, num_layers: int) -> list[str]:
        return [FULL_LAYER] * num_layers

    greedy = tuple(
        replace(family, layer_types=family.layer_types or all_full, reads_layer_types=True) for family in FAMILIES
    )
    return swapped(playhead.models.build, "FAMILIES", greedy)


@mutant(
    "softcaps of every family",
    source="found here: softcaps changed llama's logits",
    killed_by=("keys a family ignores",),
)
def softcaps_of_every_family() -> Patch:
    greedy = tuple(
        replace(
            family,
            attention_softcap_key="attn_logit_softcapping",
            final_softcap_key="final_logit_softcapping",
        )
        for family in FAMILIES
    )
    return swapped(playhead.models.build, "FAMILIES", greedy)


@mutant(
    "use_sliding_window of every family",
    source="found here: Qwen's switch turned off Mistral's window",
    killed_by=("keys a family ignores",),
)
def window_switch_of_every_family() -> Patch:
    windows = playhead.models.build._windows

    def switched(family: Family, config: ConfigReader) -> list[int | None]:
        found = windows(family, config)
        return [None] * len(found) if config.value("use_sliding_window") is False else found

    return swapped(playhead.models.build, "_windows", switched)


@mutant(
    "any number will do",
    source="found here: NaN, zero and negative numbers in configs ran to garbage",
    killed_by=("senseless numbers",),
)
def any_number_will_do() -> Patch:
    def holds(self: Range, value: object) -> bool:
        return isinstance(value, int | float)

    return swapped(Range, "holds", holds)


@mutant(
    "any number above zero will do",
    source="found here: 1e-300 as a factor or an eps is zero in float32",
    killed_by=("senseless numbers",),
)
def any_number_above_zero_will_do() -> Patch:
    holds = Range.holds

    def holds_above_zero(self: Range, value: object) -> bool:
        return holds(replace(self, least=min(self.least, 0.0), above=True) if 0 < self.least < 1 else self, value)

    return swapped(Range, "holds", holds_above_zero)


@mutant(
    "GGUF keys unseen",
    source="found here: logit_scale and expert_count of a GGUF file were ignored",
    killed_by=("GGUF keys",),
)
def gguf_keys_unseen() -> Patch:
    def blind(metadata: Mapping[str, Any], architecture: str, *, also_read: Collection[str] = ()) -> None:
        return None

    return swapped(playhead.models.checkpoint.gguf_model, "check_keys", blind)


@mutant(
    "a GGUF rope factor needs a type",
    source="found here: rope.scaling.factor without a type was ignored",
    killed_by=("GGUF keys",),
)
def gguf_rope_factor_needs_a_type() -> Patch:
    scaling = playhead.models.checkpoint.gguf_model.rope_scaling

    def typed(values: Mapping[str, Any], architecture: str) -> dict[str, object] | None:
        return scaling(values, architecture) if "rope.scaling.type" in values else None

    return swapped(playhead.models.checkpoint.gguf_model, "rope_scaling", typed)


@mutant("GGUF prompts without BOS", source="found here: Llama 3 prompts lacked BOS", killed_by=("BOS of a GGUF file",))
def gguf_prompts_without_bos() -> Patch:
    def nothing(metadata: Mapping[str, Any], ids: Mapping[str, int | None], *, adds_bos: bool) -> dict[str, list[Any]]:
        return {"single": ["$A"], "special_tokens": []}

    return swapped(playhead.models.text.gguf_vocab, "_around", nothing)


@mutant(
    "the index before the single file",
    source="found here: a stale index hid model.safetensors",
    killed_by=("a stale index",),
)
def index_before_the_single_file() -> Patch:
    shards = playhead.models.checkpoint.directory._shards

    def index_first(directory: Path) -> dict[str, set[str] | None]:
        single = directory / playhead.models.checkpoint.directory.SINGLE_FILE
        if not (directory / playhead.models.checkpoint.directory.INDEX_FILE).is_file() or not single.is_file():
            return shards(directory)
        single.unlink()
        return shards(directory)

    return swapped(playhead.models.checkpoint.directory, "_shards", index_first)


@mutant(
    "the config ties before the files",
    source="found here: a head in the file was ignored",
    killed_by=("the head of a tied checkpoint",),
)
def config_ties_before_the_files() -> Patch:
    def as_configured(spec: ModelSpec, family: Family, source: TensorSource) -> ModelSpec:
        return spec

    return swapped(playhead.models.checkpoint.fill, "as_stored", as_configured)


@mutant("fused tensors read from their start", source="k and v would be q's first rows", killed_by=("fused tensors",))
def fused_tensors_from_their_start() -> Patch:
    part_of = Piece.part

    def from_start(self: Piece, shard: Shard = WHOLE) -> Part | None:
        part = part_of(self, shard)
        return part if part is None else replace(part, start=0, stop=part.stop - part.start)

    return swapped(Piece, "part", from_start)


@mutant(
    "the factor on the residual ignored",
    source="Granite's logits would be noise",
    killed_by=("the factor on the residual",),
)
def residual_factor_ignored() -> Patch:
    linear = PlainWeights.linear

    def unscaled(
        self: PlainWeights, num_inputs: int, num_outputs: int, *, has_bias: bool, scale: float = 1.0
    ) -> PlainLinear:
        return linear(self, num_inputs, num_outputs, has_bias=has_bias)

    return swapped(PlainWeights, "linear", unscaled)


@mutant(
    "lists of layers without rope ignored",
    source="SmolLM 3 would lose long contexts",
    killed_by=("layers without rope",),
)
def rope_lists_ignored() -> Patch:
    rotating = tuple(replace(family, rope_on=rope_everywhere) for family in FAMILIES)
    return swapped(playhead.models.build, "FAMILIES", rotating)


@mutant(
    "tables of the whole context",
    source="found here: 2 GB of rotary tables for a context of 128",
    killed_by=("rotary tables",),
)
def tables_of_the_whole_context() -> Patch:
    reach = Decoder.reach

    def reach_all(self: Decoder, num_positions: int) -> None:
        reach(self, self.spec.max_context_tokens)

    return swapped(Decoder, "reach", reach_all)


@mutant(
    "the context does not give way",
    source="found here: 128k models did not start on default settings",
    killed_by=("a long context",),
)
def context_does_not_give_way() -> Patch:
    def as_wanted(
        limits: KVLimits, config: EngineConfig, geometry: KVGeometry, kv_bytes: int, notes: list[str]
    ) -> KVLimits:
        return limits

    return swapped(playhead.engine.memory, "_with_context_that_fits", as_wanted)


@mutant(
    "settings unchecked",
    source="found here: wrong settings failed after the weights were loaded",
    killed_by=("settings as they are made",),
)
def settings_unchecked() -> Patch:
    def taken(owner: object, settings: Sequence[Declared], refused: Refused) -> None:
        return None

    return swapped(playhead.engine.config, "check_settings", taken)


@mutant(
    "torch's own grouped matmul",
    source="found here: gpt-oss could not be traced in float32 and float16",
    killed_by=("traced experts",),
)
def torchs_own_grouped_matmul() -> Patch:
    def grouped(*args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        rows_PI, weights_XIO, ends_X = args
        return F.grouped_mm(rows_PI, weights_XIO, offs=ends_X)

    return swapped(playhead.layers.moe, "grouped_matmul", grouped)


@mutant(
    "padding goes to experts",
    source="found here: what padded rows held changed the last bits of the tokens beside them",
    killed_by=("padding beside experts",),
)
def padding_goes_to_experts() -> Patch:
    def places(self: Experts, experts_TC: torch.Tensor, live_T: torch.Tensor | None) -> torch.Tensor:
        return experts_TC

    return swapped(Experts, "places", places)


@mutant(
    "no folder of a hub model is fetched",
    source="found here: a template for tools was read from a directory and left out of a download",
    killed_by=("files of a hub model",),
)
def folders_stay_on_the_hub() -> Patch:
    return swapped(playhead.models.checkpoint.hub, "IGNORED_PATTERNS", ("*/*", "consolidated*", "*.bin"))


MODEL_MUTANTS: tuple[Mutant, ...] = (
    folders_stay_on_the_hub,
    padding_goes_to_experts,
    new_rope_name_wins,
    trained_context_of_the_table_alone,
    layer_types_of_every_family,
    softcaps_of_every_family,
    window_switch_of_every_family,
    any_number_will_do,
    any_number_above_zero_will_do,
    gguf_keys_unseen,
    gguf_rope_factor_needs_a_type,
    gguf_prompts_without_bos,
    index_before_the_single_file,
    config_ties_before_the_files,
    fused_tensors_from_their_start,
    residual_factor_ignored,
    rope_lists_ignored,
    tables_of_the_whole_context,
    context_does_not_give_way,
    settings_unchecked,
    torchs_own_grouped_matmul,
)
