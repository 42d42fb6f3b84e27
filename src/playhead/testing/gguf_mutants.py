"""Bugs in how GGUF files are read, names of the hub are taken and a machine's memory is counted; what notices them."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import playhead.engine.host_memory
import playhead.engine.memory
import playhead.kv.plan
import playhead.models.checkpoint.gguf_model
import playhead.models.checkpoint.hub
import playhead.models.load
import playhead.models.text.gguf_sentencepiece
from playhead.engine.config import EngineConfig
from playhead.engine.host_memory import free_host_bytes
from playhead.engine.memory import fit_beside_weights, fit_memory
from playhead.errors import CheckpointError, ConfigError
from playhead.kernels.blocks import BLOCK_SIZE
from playhead.kv.geometry import KVGeometry
from playhead.kv.plan import KVLimits, KVPlan, least_bytes, plan_kv
from playhead.layers.blocks import BlockLinear, Blocks
from playhead.layers.rope import inverse_frequencies
from playhead.layers.spec import StoredAs
from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint.fill import Filling, load_decoder
from playhead.models.checkpoint.gguf_architectures import ARCHITECTURES
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_model import GgufWeights
from playhead.models.checkpoint.hub import hub_name, resolve_model
from playhead.models.checkpoint.pieces import Piece, pieces_of
from playhead.models.checkpoint.sources import InMemoryTensors, Part
from playhead.models.load import ModelDescription, describe_model, load_weights
from playhead.models.spec import ModelSpec
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.step.forward import kv_geometry
from playhead.testing import hostile_base as base
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped

Q8_0 = 8  # the format's number of this type
PIECES = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc"]


def norms_of_gemma() -> list[str]:
    """A norm of a Gemma file has the converter's one in it, and the decoder adds its own."""
    tensors = base.gemma_gguf_tensors()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(base.gguf_bytes(base.gemma_gguf_metadata(), tensors))
        weights = GgufWeights(GgufFile(path), base.CONFIG, path.name)
        stored = torch.frombuffer(bytearray(tensors["output_norm.weight"][1]), dtype=torch.float32)
        found = weights.read("model.norm.weight")
    return [] if torch.equal(found, stored - 1) else ["a norm of Gemma keeps the one that the converter added"]


def rope_factors() -> list[str]:
    """Llama 3's rope is scaled by a tensor of the file."""
    factors = struct.pack("<8f", *(1.0 + i for i in range(8)))
    tensors = {**base.gguf_tensors(), "rope_freqs.weight": ((8,), factors)}
    with TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(base.gguf_bytes(base.gguf_metadata(), tensors))
        rope = describe_model(str(path)).spec.layers[0].attention.rope
    assert rope is not None, "llama turns every layer"
    plain = inverse_frequencies(replace(rope, scaling=None))
    divided = plain / torch.arange(1.0, 9.0)
    return [] if torch.equal(inverse_frequencies(rope), divided) else ["rope_freqs.weight was not obeyed"]


class CountedBlocks:
    """Tensors whose matrices are stored as blocks. Counts how often each tensor is unpacked."""

    label = "counted tensors"

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._numbers = InMemoryTensors(tensors)
        self.tensors, self.num_unpacked = self._numbers.tensors, Counter[str]()

    def read(self, name: str, part: Part | None = None) -> torch.Tensor:
        self.num_unpacked[name] += 1
        return self._numbers.read(name, part)

    def blocks(self, name: str, part: Part | None = None) -> Blocks | None:
        if len(self.tensors[name].shape) != 2:
            return None
        self.num_unpacked[name] += 1
        codes_OI = self._numbers.read(name, part).to(torch.int8)
        ones_OB = torch.ones(codes_OI.shape[0], codes_OI.shape[1] // BLOCK_SIZE)
        return Blocks(codes_OI=codes_OI, scales_OB=ones_OB, offsets_OB=torch.zeros_like(ones_OB))


def unpacked_once() -> list[str]:
    """A map that keeps blocks has its plain matrix from them."""
    spec = replace(spec_from_config(base.LLAMA), stored_as=StoredAs.BLOCKS)
    pieces = pieces_of(spec, family_named(spec.family), ())
    source = CountedBlocks({name: torch.ones(shape) for piece in pieces for name, shape in piece.sources})
    load_decoder(spec, source, dtype=torch.float32, device=torch.device("cpu"))
    return [f"{name} was unpacked {count} times" for name, count in source.num_unpacked.items() if count != 1]


def planned_with_blocks() -> list[str]:
    """The memory plan has room for the blocks that maps keep on a CPU."""
    tensors = base.gguf_tensors()
    matrices = {name: shape for name, (shape, _) in tensors.items() if len(shape) == 2}
    packed = {
        name: (shape, bytes(rows * columns // 32 * 34)) for name, shape in matrices.items() for rows, columns in [shape]
    }
    with TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(base.gguf_bytes(base.gguf_metadata(), tensors | packed, types=dict.fromkeys(packed, Q8_0)))
        description, cpu = describe_model(str(path)), torch.device("cpu")
        planned = fit_beside_weights(description, EngineConfig(), cpu, 1 << 30).weight_bytes
        decoder = load_weights(description, dtype=torch.float32, device=cpu)
    maps = [module for module in decoder.modules() if isinstance(module, BlockLinear)]
    kept = [part for one in maps for part in one.buffers()]
    loaded = sum(part.nbytes for part in (*decoder.parameters(), *kept))
    return [] if planned == loaded else [f"{planned} bytes of weights were planned, {loaded} were loaded"]


def best_piece_first() -> list[str]:
    """Of "abc" the better of "ab" and "bc" is merged, whatever their order in the file."""
    found = []
    for scores, wanted in (((2.0, 1.0), ["ab", "c"]), ((1.0, 2.0), ["a", "bc"])):
        metadata = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": PIECES,
            "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1],
            "tokenizer.ggml.scores": [0.0] * 6 + list(scores),
            "tokenizer.ggml.add_space_prefix": False,
        }
        ids = tokenizer_from_gguf(metadata).encode("abc", add_special_tokens=False)
        if [PIECES[i] for i in ids] != wanted:
            found.append(f"scores {scores} gave {[PIECES[i] for i in ids]}")
    return found


def memory_of_a_container() -> list[str]:
    """A control group's limit is the memory there is."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        for name, content in {
            "proc/meminfo": "MemAvailable: 5000 kB\n",
            "sys/fs/cgroup/memory.max": "4000\n",
            "sys/fs/cgroup/memory.current": "1000\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        found = free_host_bytes(root)
    return [] if found == 3000 else [f"{found} bytes are said to be free where a group leaves 3000"]


def memory_that_is_enough() -> list[str]:
    """What a plan is said to need, it fits in; and a chunk is no longer than all contexts together."""
    found = []
    for family in ("gemma2", "mistral"):
        config = {**base.LLAMA, "model_type": family, "sliding_window": 8, "head_dim": 16, "num_hidden_layers": 2}
        config |= {"max_position_embeddings": 2000}
        description = ModelDescription(path=Path("none"), config=config, spec=spec_from_config(config))
        geometry = kv_geometry(description.spec, page_size=16, dtype=torch.float32)
        limits = KVLimits(max_context_tokens=2000, max_running=2, chunk_tokens=1)
        least = least_bytes(geometry, limits)
        settings = EngineConfig(max_model_len=2000, max_num_seqs=2, kv_memory_bytes=least)
        try:
            fit_memory(description, settings, torch.device("cpu"), 1 << 30)
        except ConfigError as error:
            found.append(f"{family}: {error}")
        short = KVLimits(max_context_tokens=64, max_running=1, chunk_tokens=64)
        num_bytes = 2 * least_bytes(geometry, short)
        if not playhead.kv.plan.most_running(num_bytes, geometry, replace(short, chunk_tokens=1 << 20)):
            found.append(f"{family}: no request of 64 tokens beside a chunk that is longer")
        ahead = KVLimits(max_context_tokens=2000, max_running=1, chunk_tokens=1, num_steps_in_flight=2)
        plan = plan_kv(num_bytes=least_bytes(geometry, ahead), geometry=geometry, limits=ahead)
        if not plan.capacity(2000).num_requests:
            found.append(f"{family}: memory for one request is said to hold none")
    return found


def home_that_is_unknown() -> list[str]:
    """A model in the home of a user whom the machine does not know is a model that is not there."""
    try:
        resolve_model("~nosuchuser/some/model")
    except CheckpointError:
        return []
    except RuntimeError as error:
        return [f"refused as {error!r}"]
    return ["found a model in the home of nobody"]


def names_that_lead_out() -> list[str]:
    """No name of the hub is a path that leaves its repository."""
    names = ("me/../x", "../me/x", "me/x:../y.gguf", "me/x:/y.gguf", "me/x:a/../../y.gguf", "me/x:weights.bin")
    return [f"{name!r} was taken" for name in names if hub_name(name) is not None]


GGUF_CHECKERS: tuple[Checker, ...] = (
    Checker(name="norms of a Gemma file", run=norms_of_gemma),
    Checker(name="rope factors of a file", run=rope_factors),
    Checker(name="unpacked once", run=unpacked_once),
    Checker(name="planned with blocks", run=planned_with_blocks),
    Checker(name="memory that is enough", run=memory_that_is_enough),
    Checker(name="a home that is unknown", run=home_that_is_unknown),
    Checker(name="the best piece first", run=best_piece_first),
    Checker(name="memory of a container", run=memory_of_a_container),
    Checker(name="names that lead out", run=names_that_lead_out),
)


@mutant(
    "Gemma's norms keep the converter's one",
    source="llama.cpp's converter adds one to Gemma's norms",
    killed_by=("norms of a Gemma file",),
)
def norms_keep_the_one() -> Patch:
    architectures = {name: replace(one, adds_one_to_norms=False) for name, one in ARCHITECTURES.items()}
    return swapped(playhead.models.checkpoint.gguf_model, "ARCHITECTURES", architectures)


@mutant(
    "rope factors of a file unread",
    source="llama.cpp: Llama 3's long context came out as noise without rope_freqs",
    killed_by=("rope factors of a file",),
)
def rope_factors_unread() -> Patch:
    def without(file: GgufFile, config: Mapping[str, object]) -> ModelSpec:
        return spec_from_config(config)

    return swapped(playhead.models.load, "spec_from_gguf", without)


@mutant(
    "blocks unpacked beside the numbers",
    source="found here: each packed tensor was read and unpacked twice",
    killed_by=("unpacked once",),
)
def blocks_unpacked_beside_the_numbers() -> Patch:
    def both(self: Filling, target: torch.Tensor, piece: Piece) -> Blocks | None:
        name, _ = piece.sources[0]
        target.copy_(self.source.read(name, piece.part(self.shard)))
        return self.source.blocks(name, piece.part(self.shard)) if piece.target in self.maps else None

    return swapped(Filling, "fill", both)


@mutant(
    "blocks left out of the plan",
    source="found here: the plan counted parameters alone, 10 bits a weight less than a GGUF file takes on a CPU",
    killed_by=("planned with blocks",),
)
def blocks_left_out_of_the_plan() -> Patch:
    def nothing(description: ModelDescription, dtype: torch.dtype, device: torch.device) -> int:
        return 0

    return swapped(playhead.engine.memory, "num_block_bytes", nothing)


@mutant(
    "pieces merged in the order of the file",
    source="a file's order is that of ids; SentencePiece goes by scores",
    killed_by=("the best piece first",),
)
def pieces_by_id() -> Patch:
    merges_of = playhead.models.text.gguf_sentencepiece.merges_of

    def unscored(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
        return merges_of(tokens, types, [0.0] * len(scores))

    return swapped(playhead.models.text.gguf_sentencepiece, "merges_of", unscored)


@mutant(
    "a container's limit unseen",
    source="found here: only the second version of control groups was read, and only the outermost group",
    killed_by=("memory of a container",),
)
def containers_limit_unseen() -> Patch:
    def nothing(root: Path) -> Iterator[int]:
        return iter(())

    return swapped(playhead.engine.host_memory, "_left_in_groups", nothing)


@mutant(
    "chunks give way to a short context alone",
    source="found here: a context that was asked for was refused, because of a chunk that nobody had asked for",
    killed_by=("memory that is enough",),
)
def chunks_give_way_to_a_short_context() -> Patch:
    def short(limits: KVLimits, config: EngineConfig) -> int:
        return min(limits.max_context_tokens, playhead.engine.memory.MIN_CONTEXT_TOKENS)

    return swapped(playhead.engine.memory, "_least_context", short)


@mutant(
    "names without bytes",
    source="found here: a model of windows alone was told to take as many bytes as it had",
    killed_by=("memory that is enough",),
)
def names_without_bytes() -> Patch:
    least_slabs = playhead.kv.plan._least_slabs

    def slabs_alone(plan: KVPlan, num_requests: int) -> int:
        return least_slabs(plan, plan.limits.max_context_tokens, num_requests) * plan.layout.slab_bytes

    return swapped(playhead.kv.plan, "_bytes_with_names", slabs_alone)


@mutant(
    "a chunk longer than all contexts",
    source="found here: one request of 64 tokens was refused for want of pages for a chunk of 4,096",
    killed_by=("memory that is enough",),
)
def chunk_longer_than_all_contexts() -> Patch:
    def uncut(num_bytes: int, geometry: KVGeometry, limits: KVLimits) -> int:
        made = playhead.kv.plan._plan_of(geometry, limits, num_bytes)
        num_tokens = limits.chunk_tokens
        return playhead.kv.plan._largest(lambda count: made._holds([count] * len(geometry.groups), num_tokens))

    return swapped(playhead.kv.plan, "most_running", uncut)


@mutant(
    "a page for the chunk of each step",
    source="found here: the least memory of a plan was said to hold no request, where chunks are shorter than a page",
    killed_by=("memory that is enough",),
)
def page_for_each_chunk() -> Patch:
    holds = KVPlan._holds

    def by_step(plan: KVPlan, pages: list[int], num_tokens: int) -> bool:
        page_size, chunk_tokens = plan.geometry.page_size, plan.limits.chunk_tokens
        whole = replace(plan.limits, chunk_tokens=chunk_tokens + -chunk_tokens % page_size)
        return holds(replace(plan, limits=whole), pages, num_tokens)

    return swapped(KVPlan, "_holds", by_step)


@mutant(
    "homes of users that there are not",
    source="found here: ~name of nobody raised RuntimeError wherever a path is taken",
    killed_by=("a home that is unknown",),
)
def homes_of_nobody() -> Patch:
    def expanded(text: str) -> Path:
        return Path(text).expanduser()

    return swapped(playhead.models.checkpoint.hub, "user_path", expanded)


@mutant("any name is the hub's", source="a path in a name leaves the cache", killed_by=("names that lead out",))
def any_name_is_the_hubs() -> Patch:
    return swapped(playhead.models.checkpoint.hub, "HUB_NAME", re.compile(r"([^:]+/[^:]+)(?::(.+))?"))


GGUF_MUTANTS: tuple[Mutant, ...] = (
    norms_keep_the_one,
    rope_factors_unread,
    blocks_unpacked_beside_the_numbers,
    blocks_left_out_of_the_plan,
    pieces_by_id,
    containers_limit_unseen,
    chunks_give_way_to_a_short_context,
    names_without_bytes,
    chunk_longer_than_all_contexts,
    page_for_each_chunk,
    homes_of_nobody,
    any_name_is_the_hubs,
)
