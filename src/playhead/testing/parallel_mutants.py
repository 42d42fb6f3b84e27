"""Bugs of ranks that share a model: wrong tokens without a word, or a wait for ever."""

from __future__ import annotations

import socket
import time

import torch

import playhead.kernels.vocabulary
import playhead.layers.shard
import playhead.parallel.leader
import playhead.parallel.rank
from playhead.graph.runner import GraphRunner
from playhead.kernels.tokens import choose_scratch, choose_tokens, gumbel_noise
from playhead.kernels.vocabulary import choose_keys, tokens_of
from playhead.layers.linear import PlainLinear, PlainWeights
from playhead.layers.parallel import SharedWeights
from playhead.layers.shard import Shard
from playhead.layers.spec import AttentionSpec
from playhead.models.build import family_named, spec_from_config
from playhead.models.checkpoint.fill import load_decoder
from playhead.models.checkpoint.pieces import Piece, pieces_of
from playhead.models.checkpoint.sources import InMemoryTensors
from playhead.parallel.leader import OtherRank, Ranks
from playhead.parallel.rank import Link
from playhead.sampling_params import GREEDY_BELOW, SamplingKind
from playhead.step.worker import Worker
from playhead.testing.mutant import Checker, Mutant, Patch, mutant, swapped
from playhead.testing.tiny_worker import tiny_worker
from playhead.types import TPMode

CPU = torch.device("cpu")
PATIENCE_S = 20.0  # of a machine that is busy


@mutant(
    "noise by a rank's own ids",
    source="a draw would change with the number of ranks",
    killed_by=("the choice of two ranks",),
)
def noise_by_own_ids() -> Patch:
    def from_zero(seeds_N: torch.Tensor, positions_N: torch.Tensor, vocab_size: int, first_id: int = 0) -> torch.Tensor:
        return gumbel_noise(seeds_N, positions_N, vocab_size)

    return swapped(playhead.kernels.vocabulary, "gumbel_noise", from_zero)


@mutant("of equal scores the higher rank's", source="argmax takes the lower id", killed_by=("the choice of two ranks",))
def higher_id_of_equals() -> Patch:
    return swapped(playhead.kernels.vocabulary, "ID_MASK", 0)


@mutant(
    "shares cut anywhere",
    source="found here: 56 columns of 224 round otherwise than the whole in a step of one token",
    killed_by=("columns of a share",),
)
def shares_cut_anywhere() -> Patch:
    return swapped(playhead.layers.shard, "LANES", 1)


@mutant(
    "exact ranks part the heads of a KV head",
    source="found here: one query head times the keys rounds otherwise than four at once",
    killed_by=("heads of a share",),
)
def heads_parted() -> Patch:
    def by_head(self: Shard, attention: AttentionSpec) -> int:
        return attention.num_heads

    return swapped(Shard, "query_units", by_head)


@mutant(
    "every rank adds the bias",
    source="a sum over ranks would have it as often as there are ranks",
    killed_by=("what ranks load",),
)
def bias_of_every_rank() -> Patch:
    def with_bias(
        self: SharedWeights, num_inputs: int, num_outputs: int, *, num_units: int | None, has_bias: bool, scale: float
    ) -> PlainLinear:
        return PlainWeights.linear(self, self.shard.size(num_inputs), num_outputs, has_bias=has_bias, scale=scale)

    return swapped(SharedWeights, "linear_back", with_bias)


@mutant(
    "ranks read whole tensors",
    source="N ranks would read N times the checkpoint",
    killed_by=("what ranks load",),
)
def whole_tensors_read() -> Patch:
    def everything(self: Piece, shard: Shard) -> tuple[int, int]:
        return 0, self.sources[0][1][self.split_axis or 0]

    return swapped(Piece, "span", everything)


@mutant(
    "a rank that has gone is not noticed",
    source="the next collective would wait for it",
    killed_by=("a rank that ends",),
)
def end_not_noticed() -> Patch:
    def deaf(self: Ranks, other: OtherRank) -> bool:
        return False

    return swapped(Ranks, "_hear", deaf)


@mutant(
    "runners are listed as they were made",
    source="ranks made theirs in another order, and audited different ones against each other",
    killed_by=("runners of two ranks",),
)
def runners_as_made() -> Patch:
    def as_made(self: Worker) -> list[GraphRunner]:
        return [self.prefill, *self.decoders.values()]

    return swapped(Worker, "runners", property(as_made))


@mutant(
    "a rank that computes counts as one that waits",
    source="found here: limits in seconds on a machine with much else to do",
    killed_by=("a rank that computes",),
)
def computing_not_told() -> Patch:
    return swapped(playhead.parallel.rank, "COMPUTING_CPU_S", 1e9)


def choice_of_two() -> list[str]:
    """Each rank's choice among its half of the ids, and the larger of both, against the choice among all."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(8, 96, generator=generator)
    logits[7, [20, 70]] = 9.0  # equal: the lower id
    temperature = torch.tensor([0.8] * 4 + [0.0] * 4)
    numbers = (temperature, torch.arange(8) * 77, torch.arange(8))
    wanted = torch.empty(8, dtype=torch.int64)
    choose_tokens.reference(logits, None, *numbers, wanted, *choose_scratch(8, 96), GREEDY_BELOW, True)
    keys = []
    for first in (0, 48):
        key = torch.empty(8, dtype=torch.int64)
        share, scratch = logits[:, first : first + 48], choose_scratch(8, 48)
        choose_keys.reference(share, *numbers, key, *scratch, first, GREEDY_BELOW, True)
        keys.append(key)
    found = tokens_of(torch.maximum(*keys))
    return [f"row {row}: {a} and not {b}" for row, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]


def columns_of_a_share() -> list[str]:
    """One token through a matrix, whole and in four parts."""
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(1, 704, generator=generator), torch.randn(224, 704, generator=generator)
    shards = [Shard(rank=rank, num_ranks=4) for rank in range(4)]
    parts = [torch.mm(x, weight[slice(*shard.span(224))].t().contiguous()) for shard in shards]
    same = torch.cat(parts, dim=1) == torch.mm(x, weight.t().contiguous())
    return [] if same.all() else [f"{int((~same).sum())} of 224 columns differ"]


def heads_of_a_share() -> list[str]:
    whole = AttentionSpec(window=None, num_heads=8, num_kv_heads=2, k_head_dim=16, v_head_dim=16, scale=0.25, rope=None)
    share = Shard(num_ranks=4, mode=TPMode.EXACT).attention(whole)
    return [] if share.num_heads == 4 * share.num_kv_heads else [f"{share.num_heads} heads of {share.num_kv_heads}"]


def what_ranks_load() -> list[str]:
    """Two ranks read each number of a split matrix once, and one of them has the bias of a sum."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32}
    config = {"model_type": "llama", "mlp_bias": True, "tie_word_embeddings": True, **sizes, **heads}
    spec = spec_from_config(config)
    whole = load_decoder(spec, tensors_of(config), dtype=torch.float32, device=CPU)
    found, num_biases, num_rows = [], 0, 0
    for rank in range(2):
        shard = Shard(rank=rank, num_ranks=2, mode=TPMode.FAST, is_grouped=True)
        share = load_decoder(spec, tensors_of(config), dtype=torch.float32, device=CPU, shard=shard)
        parameters = dict(share.named_parameters())
        num_biases += "blocks.0.mlp.down.bias" in parameters
        num_rows += len(parameters["blocks.0.mlp.gate_up.weight"])
    if num_biases != 1:
        found.append(f"{num_biases} ranks add the bias")
    if num_rows != len(whole.get_parameter("blocks.0.mlp.gate_up.weight")):
        found.append(f"ranks have {num_rows} rows")
    return found


def tensors_of(config: dict[str, object]) -> InMemoryTensors:
    """A checkpoint of this config."""
    pieces = pieces_of(spec_from_config(config), family_named(str(config["model_type"])), ())
    return InMemoryTensors({name: torch.randn(shape) for piece in pieces for name, shape in piece.sources})


def runners_of_two_ranks() -> list[str]:
    """Two workers whose decoders were first wanted in another order list them alike."""
    listed = []
    for kinds in ((SamplingKind.GREEDY, SamplingKind.DRAWN), (SamplingKind.DRAWN, SamplingKind.GREEDY)):
        worker = tiny_worker()
        worker.decoders.clear()
        for kind in kinds:
            worker.decoder_for(kind)
        listed.append([runner.step.name for runner in worker.runners])
    return [] if listed[0] == listed[1] else [f"{listed[0]} and {listed[1]}"]


def rank_that_ends() -> list[str]:
    """A process in a rank's place that ends at once. That is a failure, and is known within a moment."""
    with swapped(playhead.parallel.leader, "MODULE", "playhead.testing.gone_rank"):
        ranks = Ranks(2)
    try:
        ranks.others[0].process.wait()
        ends_s = time.monotonic() + PATIENCE_S
        while ranks.failure is None and ranks.is_watched and time.monotonic() < ends_s:
            time.sleep(0.01)
        return [] if ranks.failure is not None else ["nobody noticed"]
    finally:
        ranks.close()


def rank_that_computes() -> list[str]:
    """A rank on a CPU that has used a processor since its last beat says so."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = Link(ours, cpu_clock=iter((1.0, 1.2)).__next__)
        link.worker = tiny_worker()
        link.computes()
        return [] if link.computes() else ["it would be given up after three seconds"]


PARALLEL_MUTANTS: tuple[Mutant, ...] = (
    noise_by_own_ids,
    higher_id_of_equals,
    shares_cut_anywhere,
    heads_parted,
    bias_of_every_rank,
    whole_tensors_read,
    end_not_noticed,
    runners_as_made,
    computing_not_told,
)

PARALLEL_CHECKERS: tuple[Checker, ...] = (
    Checker(name="the choice of two ranks", run=choice_of_two),
    Checker(name="columns of a share", run=columns_of_a_share),
    Checker(name="heads of a share", run=heads_of_a_share),
    Checker(name="what ranks load", run=what_ranks_load, raises=(RuntimeError,)),
    Checker(name="a rank that ends", run=rank_that_ends),
    Checker(name="runners of two ranks", run=runners_of_two_ranks),
    Checker(name="a rank that computes", run=rank_that_computes),
)
