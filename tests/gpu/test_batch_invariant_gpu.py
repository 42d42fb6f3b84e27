"""`batch_invariant` in bfloat16: a request has the same tokens however it is run, without exception.

`PLAYHEAD_INVARIANT_CASES` is the number of requests; 1,000 are the whole campaign. The embedded model, and Gemma-3-1B's
shapes with seeded weights by which most tokens are close calls.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pytest
import torch

from playhead.attention.ordered import OrderedBackend
from playhead.engine.config import EngineConfig
from playhead.graph import Mode
from playhead.kernels.elementwise import softcap_
from playhead.kernels.head import can_choose
from playhead.kernels.ordered import gate_in_order, matmul_in_order, project_normed_in_order
from playhead.llm import LLM
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.step.audit import audit_worker
from playhead.testing.order_checkers import unordered_ops
from playhead.testing.tiny_worker import dense_logits, last_logits, spread, tiny_worker
from tests.e2e.embedded import sampling
from tests.gpu.test_head_gpu import head, logits_of
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene

NUM_CASES = int(os.environ.get("PLAYHEAD_INVARIANT_CASES", "24"))
GEMMA = str(Path(__file__).parents[2] / "bench" / "models" / "gemma3-1b")


Answer = tuple[list[int], list[dict[int, float]]]
"""Tokens; and for each the logprobs that were asked for."""


def answer_of(output: RequestOutput) -> Answer:
    (completion,) = output.outputs
    logprobs = completion.logprobs or []
    return completion.token_ids, [{token: one.logprob for token, one in position.items()} for position in logprobs]


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Requests to one model: every third greedy, the others drawn, half of those with filters; some with logprobs.

    Every twentieth prompt is long: attention takes it in several segments where the model reaches so far.
    """

    model: str
    longest: int
    num_tokens: int
    kv_bytes: int
    little_kv_bytes: int

    @cached_property
    def prompts(self) -> list[list[int]]:
        rng = random.Random(5)
        lengths = [rng.randint(self.longest * 3 // 4, self.longest) if i % 20 == 7 else rng.randint(1, 160)
                   for i in range(NUM_CASES)]  # fmt: skip
        return [[rng.randrange(3, 4096) for _ in range(length)] for length in lengths]

    def params(self, i: int) -> SamplingParams:
        return sampling("drawn" if i % 3 else "greedy", i, self.num_tokens, logprobs=3 if i % 10 == 9 else None)

    def llm(self, **settings) -> LLM:
        usual = {"dtype": "bfloat16", "max_model_len": self.longest + 64, "max_num_seqs": 64, "batch_invariant": True}
        if self.model == GEMMA:
            usual |= {"load_format": "dummy", "skip_tokenizer_init": True}
        llm = LLM(self.model, EngineConfig(**usual | {"kv_memory_bytes": self.kv_bytes} | settings))
        if self.model == GEMMA:
            spread(llm.engine.worker.model.decoder)
        return llm

    def run(self, llm: LLM, order: list[int] | None = None) -> list[Answer]:
        """Answers by prompt, of requests that are sent at once in this order."""
        order = order or list(range(NUM_CASES))
        found = llm.generate([self.prompts[i] for i in order], [self.params(i) for i in order], use_tqdm=False)
        by_prompt = dict(zip(order, map(answer_of, found), strict=True))
        return [by_prompt[i] for i in sorted(order)]


EMBEDDED_CAMPAIGN = Campaign(model="embedded", longest=900, num_tokens=24, kv_bytes=1 << 27, little_kv_bytes=3_000_000)
GEMMA_CAMPAIGN = Campaign(model=GEMMA, longest=1400, num_tokens=16, kv_bytes=1 << 31, little_kv_bytes=44_000_000)


@pytest.fixture(scope="module", params=[EMBEDDED_CAMPAIGN, GEMMA_CAMPAIGN], ids=["embedded", "gemma-3-1b"])
def campaign(request) -> Campaign:
    return request.param


@pytest.fixture(scope="module")
def alone(campaign) -> list[Answer]:
    """Each request by itself."""
    with campaign.llm(enable_prefix_caching=False) as llm:
        return [campaign.run(llm, [i])[0] for i in range(NUM_CASES)]


@pytest.fixture(scope="module")
def together(campaign) -> Iterator[LLM]:
    with campaign.llm() as llm:
        yield llm


def check(found: list[Answer], wanted: list[Answer]) -> None:
    different = [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]
    print(f"{len(different)} of {len(found)} requests differ")
    assert different == []


def test_in_a_batch_and_in_another_order_and_with_prefix_hits(campaign, alone, together):
    check(campaign.run(together), alone)
    shuffled = sorted(range(NUM_CASES), key=lambda i: i * 7919 % 1009)
    check(campaign.run(together, shuffled), alone)
    assert together.engine.worker.kv.prefix.stats.num_hit_pages > 0


@pytest.mark.parametrize("chunk", [48, 700])
def test_with_other_chunks(campaign, alone, chunk):
    with campaign.llm(max_num_batched_tokens=chunk, max_num_seqs=24, enable_prefix_caching=False) as llm:
        check(campaign.run(llm), alone)


def test_with_preemption(campaign, alone):
    with campaign.llm(kv_memory_bytes=campaign.little_kv_bytes, max_num_batched_tokens=256) as llm:
        check(campaign.run(llm), alone)
        print(f"{llm.stats.num_preemptions} preemptions")
        assert llm.stats.num_preemptions > 0 or campaign.model == GEMMA  # how many there are follows from the prompts


@pytest.mark.parametrize("mode", [Mode.EAGER, Mode.BREAKABLE, Mode.PIECEWISE])
def test_through_other_graphs(campaign, alone, mode):
    if campaign.model == GEMMA and mode is Mode.PIECEWISE:
        pytest.skip("26 layers compile for a minute")
    with campaign.llm(graph_mode=mode) as llm:
        check(campaign.run(llm), alone)


def test_without_the_setting_requests_differ(campaign, alone):
    """Otherwise the tests above would say nothing."""
    if NUM_CASES < 24:
        pytest.skip("too few requests")
    with campaign.llm(batch_invariant=False) as llm:
        found = campaign.run(llm)
    num_different = sum(a != b for a, b in zip(found, alone, strict=True))
    print(f"without the setting {num_different} of {NUM_CASES} requests differ")
    assert num_different > 0


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(1152, 1536), (1152, 13824), (6912, 1152), (224, 704)])
def test_a_row_of_a_matmul_has_the_same_bits_in_any_step(num_inputs, num_outputs):
    """Each number of rows has other tiles; above 1,024 a program takes all chunks of a long row."""
    rng = torch.Generator(device="cuda").manual_seed(num_inputs)
    x_TI = torch.randn(1200, num_inputs, device="cuda", generator=rng).bfloat16()
    weight_OI = torch.randn(num_outputs, num_inputs, device="cuda", generator=rng).bfloat16()
    whole = in_order(x_TI, weight_OI)
    wanted = x_TI.double() @ weight_OI.double().t()
    assert float((whole.double() - wanted).norm() / wanted.norm()) < 3e-3
    for num_rows in (1, 33, 65, 200, 300, 1025):
        assert torch.equal(in_order(x_TI[7 : 7 + num_rows].contiguous(), weight_OI), whole[7 : 7 + num_rows]), num_rows


@pytest.mark.parametrize(("num_ids", "width"), [(262144, 1152), (151936, 1024)])
def test_a_row_of_logits_has_the_same_bits_in_any_step(num_ids, width):
    """Up to 128 rows have a kernel that can choose too; more are a matmul and what bends its product."""
    h_NM, weight_VM = head(300, num_ids, width)
    whole = in_order(h_NM, weight_VM)
    bent = whole.float().mul_(0.0625)
    softcap_(bent, 0.5)
    for num_rows in (1, 8, 33, 128):
        rows, few_NM = slice(7, 7 + num_rows), h_NM[7 : 7 + num_rows].contiguous()
        assert can_choose(few_NM, weight_VM, in_order=True)
        assert torch.equal(logits_of(few_NM, weight_VM), whole[rows]), num_rows
        assert torch.equal(logits_of(few_NM, weight_VM, 0.0625, 0.5), bent[rows]), num_rows


def in_order(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    out_TO = torch.full((x_TI.shape[0], weight_OI.shape[0]), float("nan"), dtype=x_TI.dtype, device=x_TI.device)
    matmul_in_order(x_TI, weight_OI, None, out_TO, 1.0, False)
    return out_TO


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 256), (8, 64), (4, 128)])
def test_a_query_has_the_same_bits_in_a_step_of_its_own_and_in_a_chunk(num_kv_heads, head_dim, window):
    heads = {"num_kv_heads": num_kv_heads, "group_size": 4, "k_head_dim": head_dim, "v_head_dim": head_dim}
    spec = SceneSpec(seq_lens=(1100,), query_lens=(1100,), page_size=16, window=window, **heads)
    scene = make_scene(spec, seed=1, dtype=torch.bfloat16, device="cuda")
    backend = OrderedBackend(scene.plan.page_table_RP, (scene.layer,), max_bs=8)
    whole = in_chunks(scene, backend, [1100])
    assert torch.equal(in_chunks(scene, backend, [17] * 20 + [1] * 60 + [700]), whole)


@pytest.mark.parametrize("window", [None, 512])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 256), (8, 64)])
def test_a_query_has_the_same_bits_among_any_number_of_requests(num_kv_heads, head_dim, window):
    """How many programs share a request, and how each is cut, follows from the number of requests."""
    heads = {"num_kv_heads": num_kv_heads, "group_size": 4, "k_head_dim": head_dim, "v_head_dim": head_dim}
    lengths = tuple(1 + 37 * i % 1100 for i in range(160))
    spec = SceneSpec(seq_lens=lengths, page_size=16, window=window, **heads)
    scene = make_scene(spec, seed=1, dtype=torch.bfloat16, device="cuda")
    backend = OrderedBackend(scene.plan.page_table_RP, (scene.layer,), max_bs=len(lengths))
    whole = scene.new_out()
    backend.decode(scene.plan, scene.layer, scene.q, whole)
    for num_requests in (1, 8, 40, 130):
        rows, out = slice(20, 20 + num_requests), scene.new_out()
        plan = replace(scene.plan, rows_B=scene.plan.rows_B[rows], seq_lens_B=scene.plan.seq_lens_B[rows])
        backend.decode(plan, scene.layer, scene.q[rows], out[rows])
        assert torch.equal(out[rows], whole[rows]), num_requests


def in_chunks(scene: Scene, backend: OrderedBackend, chunks: list[int]) -> torch.Tensor:
    """One request's queries, a chunk after the other."""
    out, done = scene.new_out(), 0
    for num_queries in chunks:
        lens = torch.tensor([num_queries], dtype=torch.int32, device="cuda")
        plan = replace(scene.plan, seq_lens_B=lens + done, query_starts_B=torch.zeros_like(lens), query_lens_B=lens)
        here = slice(done, done + num_queries)
        backend.extend(plan, scene.layer, scene.q[here], out[here])
        done += num_queries
    assert done == len(out)
    return out


def test_no_op_adds_up_in_an_order_of_the_batch():
    worker = tiny_worker(Mode.EAGER, dtype=torch.bfloat16, device="cuda", batch_invariant=True)
    assert unordered_ops(worker) == []


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE])
def test_graphs_are_clean_under_the_audit(mode):
    for report in audit_worker(tiny_worker(mode, device="cuda", batch_invariant=True)):
        assert report.ok, report.text()


def test_logits_are_those_of_dense_attention():
    worker = tiny_worker(Mode.FULL, device="cuda", batch_invariant=True)
    prompts = [[7, 8, 9, 10, 11, 12, 13], [7], [20, 21, 22]]
    for row, prompt in zip(last_logits(worker, prompts), prompts, strict=True):
        wanted = dense_logits(worker.model.decoder, prompt)[0]
        assert float((row - wanted).norm() / wanted.norm()) < 5e-3


SIZES = {  # hidden, heads, intermediate, qkv
    "gemma-3-1b": (1152, 1024, 6912, 1536),
    "llama-3.2-1b": (2048, 2048, 8192, 3072),
    "gemma-3-4b": (2560, 2048, 10240, 4096),
    "qwen3-0.6b": (1024, 2048, 3072, 4096),
    "no whole blocks": (1088, 1024, 5008, 1584),
}
MANY_ROWS, FIRST_ROW = 2048, 37


@pytest.mark.parametrize("model", SIZES)
def test_products_have_the_same_bits_in_a_step_of_any_number_of_rows(model):
    """Kernels for one to 256 rows, for 257 to 1,024, and for more; products alone, and with what follows them."""
    hidden, heads, intermediate, qkv = SIZES[model]

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") * shape[-1] ** -0.5

    torch.manual_seed(0)
    of_qkv, of_o = numbers(qkv, hidden), numbers(hidden, heads)
    of_gate, of_down = numbers(2 * intermediate, hidden), numbers(hidden, intermediate)
    attended, gated, residual = (numbers(MANY_ROWS, size) for size in (heads, intermediate, hidden))
    norms = (*numbers(2, hidden), 1e-6, True, False)

    def products(rows: slice) -> list[torch.Tensor]:
        num_rows = len(residual[rows])
        middle, projected, plain = (numbers(num_rows, size) for size in (intermediate, qkv, hidden))
        first = project_normed_in_order(
            middle, attended[rows], of_o, None, 1.0, residual[rows], *norms, of_gate, None, "gelu_tanh"
        )
        second = project_normed_in_order(
            projected, gated[rows], of_down, None, 1.0, residual[rows], *norms, of_qkv, None, None
        )
        matmul_in_order(gated[rows], of_down, None, plain, 1.0, False)
        return [middle, first, projected, second, plain, gate_in_order(residual[rows], of_gate, None, "silu")]

    wanted = products(slice(0, MANY_ROWS))
    for num_rows in (1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 144, 200, 256, 257, 300, 512, 1024, 1025):
        rows = slice(FIRST_ROW, FIRST_ROW + num_rows)
        for i, (found, whole) in enumerate(zip(products(rows), wanted, strict=True)):
            assert torch.equal(found, whole[rows]), f"product {i} of {num_rows} rows"
