"""Tokens from logits: against a slow oracle, and the same whatever stands around a row."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.graph import TapeBackend, record
from playhead.kernels.filters import EVERY_KEY
from playhead.kernels.tokens import gumbel_noise
from playhead.sampling_params import SamplingKind, SamplingParams
from playhead.step.sampling import NUMBERS, SampledTokens, kind_of, sample
from playhead.step.scores import least_of
from tests.unit.step.sampler_inputs import VOCAB, build_inputs, logit_rows, refill, row_of, sampler_rows, seeds

EVERYTHING = SamplingKind.EVERYTHING

WRAP = 2**64


# The oracle: one row, Python floats and unbounded integers.


def splitmix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WRAP
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WRAP
    return z ^ (z >> 31)


def oracle_gumbel(seed, position, token):
    golden = 0x9E3779B97F4A7C15
    start = splitmix((splitmix((seed + golden) % WRAP) + position * golden) % WRAP)
    uniform = ((splitmix((start + token * golden) % WRAP) >> 24) + 0.5) / 2**40
    return -math.log(-math.log1p(-uniform))


def oracle_logits(logits, row):
    """After bias and penalties."""
    params, counts = row.params, Counter(row.output)
    out = []
    for token, x in enumerate(logits):
        x += params.logit_bias.get(token, 0.0)
        if len(row.output) < params.min_tokens and token in row.late_ids:
            x = -math.inf
        if token not in (params.allowed_token_ids or range(VOCAB)) or oracle_forbids(row, token):
            x = -math.inf
        if token in row.prompt or token in counts:
            x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
        out.append(x - params.frequency_penalty * counts[token] - params.presence_penalty * (counts[token] > 0))
    return out


def oracle_forbids(row, token):
    """Whether the token would complete a bad word."""
    text = (*row.output, token)
    return any(text[-len(word) :] == word for word in row.bad_words)


def oracle_kept(scaled, params):
    """The ids the filters leave, and how near any decision came to the other side."""
    best, margin = max(scaled), 1.0
    kept = sorted((t for t, x in enumerate(scaled) if x > -math.inf), key=lambda t: (-scaled[t], t))
    if params.min_p > 0:
        ratio = {t: math.exp(scaled[t] - best) for t in kept}
        margin = min([margin, *(abs(r - params.min_p) for r in ratio.values() if r != 1)])
        kept = [t for t in kept if ratio[t] >= params.min_p]
    if 0 < params.top_k < len(kept):
        least = scaled[kept[params.top_k - 1]]
        margin = min([margin, *(abs(scaled[t] - least) for t in kept if scaled[t] != least)])
        kept = kept[: params.top_k]
    if params.top_p < 1:
        weights = [math.exp(scaled[t] - best) for t in kept]
        total = sum(weights)
        before = {t: sum(weights[:place]) / total for place, t in enumerate(kept)}
        margin = min([margin, *(abs(b - params.top_p) for b in before.values())])
        kept = [t for t in kept if before[t] < params.top_p]
    return kept, margin


def oracle_token(logits, row):
    """(token, margin): below a margin of rounding the sampler may rightly decide otherwise."""
    raw, logits = logits, oracle_logits(logits, row)
    if max(logits) == -math.inf:
        return 0, 0.0  # nothing is left, and some token comes out
    if row.params.is_greedy:
        scores, margin = dict(enumerate(logits)), 1.0
    else:
        scaled = [x / row.params.temperature for x in logits]
        kept, margin = oracle_kept(scaled, row.params)
        scores = {t: scaled[t] + oracle_gumbel(row.params.seed, len(row.output), t) for t in kept}
        if logits != raw and any(scaled[t] == scaled[kept[-1]] for t in set(range(VOCAB)) - set(kept)):
            margin = 0.0  # which of two results is larger, or that they are equal, is a matter of rounding
    first = max(scores, key=lambda t: (scores[t], -t))
    second = max((s for t, s in scores.items() if t != first), default=-math.inf)
    if scores[first] != second:
        return first, min(margin, scores[first] - second)
    # Equal scores are no near miss, the lowest id wins by rule; unless they are results that float32 rounds.
    return first, min(margin, 1.0 if logits == raw else 0.0)


batches = st.lists(st.tuples(logit_rows, sampler_rows()), min_size=1, max_size=5)


def least_kind(rows):
    return max(map(kind_of, rows), default=SamplingKind.GREEDY)


def run(logits, rows, kind=None, num_rows=None):
    """Sampled, with as many reported tokens as the rows ask for."""
    kind = least_kind(rows) if kind is None else kind
    num_rows = num_rows or len(rows)
    padded = torch.full((num_rows, len(logits[0])), math.nan)
    padded[: len(rows)] = torch.tensor(logits, dtype=torch.float32)
    result = sample(padded, build_inputs(rows, num_rows=num_rows, vocab_size=padded.shape[1]), kind)
    wanted = [row.params.logprobs for row in rows if row.params.logprobs is not None]
    return SampledTokens(result.tokens_N, *(part[:, : 1 + max(wanted, default=-1)] for part in result[1:]))


def plain_row(seed=0, num_generated=0, **options):
    return row_of(SamplingParams(seed=seed, **options), output=[0] * num_generated)


def assert_same(a, b):
    for left, right in zip(a, b, strict=True):
        assert torch.equal(left, right)


@settings(max_examples=300)
@given(batches)
def test_tokens_equal_the_slow_oracle_row_by_row(batch):
    logits, rows = [x for x, _ in batch], [row for _, row in batch]
    tokens = run(logits, rows).tokens_N.tolist()
    for x, row, token in zip(logits, rows, tokens, strict=True):
        wanted, margin = oracle_token(x, row)
        if margin > 1e-4:
            assert token == wanted


def test_hardly_any_case_is_too_close_for_the_oracle():
    """The test above looks away from near misses; here they are counted."""
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=3, size=(2000, VOCAB)).astype(np.float32).tolist()
    choices = [{"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}, {"temperature": 0.6, "top_k": 9, "top_p": 0.7}, {}]
    rows = [plain_row(seed=s, num_generated=s % 7, **choices[s % 5]) for s in range(2000)]
    tokens = run(logits, rows).tokens_N.tolist()
    verdicts = [oracle_token(x, row) for x, row in zip(logits, rows, strict=True)]
    decided = [token == wanted for token, (wanted, margin) in zip(tokens, verdicts, strict=True) if margin > 1e-5]
    assert all(decided)
    assert len(decided) >= 1980


@settings(max_examples=100)
@given(batches, st.randoms(use_true_random=False), st.integers(0, 4))
def test_a_row_is_the_same_alone_permuted_padded_and_in_the_general_path(batch, random, num_empty):
    logits, rows = [x for x, _ in batch], [row for _, row in batch]
    together = run(logits, rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = run([logits[i] for i in order], [rows[i] for i in order], num_rows=len(rows) + num_empty)
    general = run(logits, rows, EVERYTHING, len(rows) + num_empty)
    for place, i in enumerate(order):
        alone = run([logits[i]], [rows[i]])
        width = alone.logprobs_NL.shape[1]
        for result, at in ((together, i), (shuffled, place), (general, i)):
            assert torch.equal(result.tokens_N[at], alone.tokens_N[0])
            for wide, narrow in zip(result[1:], alone[1:], strict=True):
                assert torch.equal(wide[at, :width], narrow[0])


def test_a_row_of_a_large_vocabulary_is_the_same_in_any_batch():
    """Float sums over 50,001 columns would round differently here; the odd width shifts every row's alignment."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 50_001, generator=generator) * 4
    rows = [plain_row(seed=i, temperature=0.9, top_p=0.95, top_k=40_000, logprobs=5) for i in range(7)]
    kind = least_kind(rows)
    together = sample(logits, build_inputs(rows, num_rows=7, vocab_size=50_001), kind)
    for i, row in enumerate(rows):
        alone = sample(logits[i : i + 1], build_inputs([row], num_rows=1, vocab_size=50_001), kind)
        assert_same([part[i : i + 1] for part in together], alone)


def test_greedy_takes_the_first_of_equal_logits():
    result = run([[1.0, 3.0, 3.0, -1.0, 3.0], [0.0, -0.0, 0.0, 0.0, 0.0]], [plain_row(temperature=0)] * 2)
    assert result.tokens_N.tolist() == [1, 0]
    assert result.tokens_N.dtype is torch.int64


def test_half_precision_logits_are_sampled_as_float32():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    inputs = build_inputs([plain_row(seed=i) for i in range(3)], num_rows=3, vocab_size=50)
    assert_same(sample(logits, inputs), sample(logits.float(), inputs))


def test_sampling_leaves_the_logits_alone():
    logits = torch.randn(2, VOCAB)
    rows = [plain_row(logit_bias={1: 5.0}, presence_penalty=1.0, top_k=3)] * 2
    before = logits.clone()
    sample(logits, build_inputs(rows, num_rows=2, vocab_size=VOCAB))
    assert torch.equal(logits, before)


def test_a_row_of_nan_still_gets_an_id_and_harms_nobody():
    logits = torch.full((3, VOCAB), math.nan)
    logits[1] = torch.arange(VOCAB).float()
    rows = [plain_row(seed=5, top_p=0.5, top_k=3, min_p=0.1, logprobs=3)] * 3
    result = sample(logits, build_inputs(rows, num_rows=3, vocab_size=VOCAB))
    assert all(0 <= token < VOCAB for token in result.tokens_N.tolist())
    assert result.tokens_N[1] == run([logits[1].tolist()], rows[:1]).tokens_N[0]


# The random numbers.


@settings(max_examples=50)
@given(seeds, st.integers(0, 2**40), st.integers(0, VOCAB - 1))
def test_noise_is_the_hash_computed_with_unbounded_integers(seed, position, token):
    noise = gumbel_noise(torch.tensor([seed]), torch.tensor([position]), VOCAB)
    assert noise.dtype is torch.float32
    assert noise[0, token].item() == pytest.approx(oracle_gumbel(seed, position, token), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("varying", ["seed", "position", "token"])
def test_noise_is_gumbel_along_every_counter(varying):
    """Chi-square over 64 equally likely cells, 65,536 numbers: 63 expected, 130 is seven deviations away."""
    count = torch.arange(65_536)
    zero = torch.zeros_like(count)
    noise = {
        "seed": lambda: gumbel_noise(count, zero, 1)[:, 0],
        "position": lambda: gumbel_noise(zero, count, 1)[:, 0],
        "token": lambda: gumbel_noise(zero[:1], zero[:1], 65_536)[0],
    }[varying]()
    uniform = np.exp(-np.exp(-noise.double().numpy()))
    cells = np.histogram(uniform, bins=64, range=(0, 1))[0]
    assert cells.sum() == 65_536
    assert ((cells - 1024) ** 2 / 1024).sum() < 130
    neighbours = np.corrcoef(uniform[:-1], uniform[1:])[0, 1]
    assert abs(neighbours) < 0.025


def test_noise_of_a_large_vocabulary_has_a_tail_and_is_finite():
    """The largest of 2^22 Gumbel numbers is near 22 log 2 = 15.2; a coarse uniform number would stop it short."""
    noise = gumbel_noise(torch.arange(64), torch.zeros(64, dtype=torch.int64), 65_536)
    assert noise.isfinite().all()
    assert 12.5 < noise.max().item() < 25
    assert noise.unique().numel() > 0.5 * noise.numel()


def test_noise_is_finite_where_the_hash_is_all_ones_or_all_zeros():
    """The uniform number of these two seeds rounds to 1, and is the smallest there is."""
    noise = gumbel_noise(torch.tensor([-267674156216137943, 7046029254386353131]), torch.zeros(2, dtype=torch.int64), 1)
    assert noise[:, 0].tolist() == pytest.approx([-math.log(24 * math.log(2)), 41 * math.log(2)], rel=1e-5)


def chi_square(counts, probabilities, num_draws):
    return sum((counts[t] - num_draws * p) ** 2 / (num_draws * p) for t, p in enumerate(probabilities) if p > 0)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"temperature": 0.5}, [0.16, 0.09, 0.0225, 0.01, 0.0025]),
        ({"top_k": 3}, [0.4, 0.3, 0.15, 0, 0]),
        ({"top_p": 0.8}, [0.4, 0.3, 0.15, 0, 0]),
        ({"min_p": 0.3}, [0.4, 0.3, 0.15, 0, 0]),
        ({"top_k": 4, "top_p": 0.7}, [0.4, 0.3, 0, 0, 0]),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_4000_seeds_draw_the_distribution(options, wanted):
    """Four degrees of freedom at most: beyond 25 once in 20,000 seed sets, and this one is fixed."""
    logits = [[math.log(p) + 1.7 for p in (0.4, 0.3, 0.15, 0.1, 0.05)]] * 4000
    tokens = run(logits, [plain_row(seed=s, **options) for s in range(4000)]).tokens_N.tolist()
    counts = Counter(tokens)
    assert all(counts[t] == 0 for t, p in enumerate(wanted) if p == 0)
    assert chi_square(counts, [p / sum(wanted) for p in wanted], 4000) < 25


def test_consecutive_tokens_of_one_seed_draw_the_distribution():
    rows = [plain_row(seed=7, num_generated=i) for i in range(4000)]
    counts = Counter(run([[0.0] * 8] * 4000, rows).tokens_N.tolist())
    assert chi_square(counts, [1 / 8] * 8, 4000) < 35


# Filters, bias and penalties, by hand.


def drawn(logits, num_draws=400, **options):
    rows = [plain_row(seed=s, **options) for s in range(num_draws)]
    return set(run([logits] * num_draws, rows).tokens_N.tolist())


def test_of_equal_logits_the_lower_ids_stay():
    logits = [2.0, 1.0, 2.0, 1.0, 2.0]
    assert drawn(logits, top_k=1) == {0}
    assert drawn(logits, top_k=2) == {0, 2}
    assert drawn(logits, top_p=0.1) == {0}
    assert drawn(logits, top_p=0.5) == {0, 2}
    assert drawn(logits, min_p=1.0) == {0, 2, 4}


def test_top_p_measures_what_top_k_left():
    """Of 0.4 0.3 0.2 0.1, top-k 2 leaves 0.57 0.43: with p 0.5 one token is enough, without top-k two are needed."""
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert drawn(logits, top_p=0.5) == {0, 1}
    assert drawn(logits, top_p=0.5, top_k=2) == {0}


def test_filters_that_are_off_cut_nothing_even_of_a_tail_too_small_to_count():
    logits = torch.tensor([[0.0, -200.0, -math.inf]])
    for row in (plain_row(), plain_row(temperature=0, top_k=1)):
        assert least_of(logits, build_inputs([row], num_rows=1, vocab_size=3)).item() == EVERY_KEY


def test_bias_adds_to_its_token_only():
    assert run([[0.0, 1.0, 2.0]], [plain_row(temperature=0, logit_bias={0: 2.5})]).tokens_N.tolist() == [0]
    assert run([[0.0, 1.0, 2.0]], [plain_row(temperature=0, logit_bias={0: 1.5})]).tokens_N.tolist() == [2]
    assert run([[0.0, 1.0, 2.0]], [plain_row(temperature=0, logit_bias={2: -100})]).tokens_N.tolist() == [1]


@pytest.mark.parametrize(("num_generated", "token"), [(0, 1), (2, 1), (3, 2)])
def test_late_ids_wait_for_min_tokens(num_generated, token):
    params = SamplingParams(temperature=0, min_tokens=3, logit_bias={2: 100.0})
    row = row_of(params, output=[0] * num_generated, late=(2,))
    assert run([[0.0, 1.0, 2.0]], [row]).tokens_N.tolist() == [token]


@pytest.mark.parametrize(
    ("options", "token"),
    [
        ({}, 0),
        ({"repetition_penalty": 1.5}, 2),  # 3/1.5 and 2.9/1.5 fall below 2.5
        ({"presence_penalty": 0.3}, 0),  # only the output counts: 2.9 - 0.3
        ({"presence_penalty": -0.2}, 1),
        ({"frequency_penalty": -0.06}, 1),  # generated twice
        ({"frequency_penalty": -0.04}, 0),
    ],
    ids=str,
)
def test_penalties_look_at_the_prompt_or_the_output(options, token):
    params = SamplingParams(temperature=0, **options)
    row = row_of(params, prompt=[0], output=[1, 1])
    assert run([[3.0, 2.9, 2.5]], [row]).tokens_N.tolist() == [token]


def test_a_repetition_penalty_pushes_negative_logits_down():
    row = row_of(SamplingParams(temperature=0, repetition_penalty=2.0), prompt=[0])
    assert run([[-1.0, -1.5]], [row]).tokens_N.tolist() == [1]


def test_the_smallest_repetition_penalty_lets_no_banned_token_through():
    params = [SamplingParams(repetition_penalty=1e-300, min_tokens=1, seed=s) for s in range(50)]
    rows = [row_of(one, prompt=[0, 1], late=[1]) for one in params]
    assert set(run([[-1.0, 5.0, 0.0]] * 50, rows).tokens_N.tolist()) == {0, 2}


# Logprobs.


def test_logprobs_are_of_the_raw_logits():
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    row = plain_row(seed=4, temperature=2.0, top_k=5, logit_bias={7: 50.0}, logprobs=4)
    result = run(logits.tolist(), [row])
    wanted = torch.log_softmax(logits.double(), dim=-1)[0]
    order = wanted.argsort(descending=True).tolist()
    assert result.logprob_ids_NL[0].tolist() == [7, *order[:4]]
    torch.testing.assert_close(result.logprobs_NL[0].double(), wanted[[7, *order[:4]]], rtol=0, atol=1e-5)
    assert result.ranks_NL[0].tolist() == [order.index(7) + 1, 1, 2, 3, 4]


def test_equal_logprobs_rank_by_lower_id():
    result = run([[1.0, -0.0, 2.0, 0.0, 1.0, 2.0]], [plain_row(temperature=0, logit_bias={4: 9}, logprobs=6)])
    assert result.logprob_ids_NL[0].tolist() == [4, 2, 5, 0, 4, 1, 3]
    assert result.ranks_NL[0].tolist() == [4, 1, 2, 3, 4, 5, 6]


def test_logprobs_zero_reports_the_chosen_token_and_none_reports_nothing():
    assert run([[0.0, 0.0]], [plain_row(temperature=0, logprobs=0)]).logprobs_NL.tolist() == [
        [pytest.approx(-math.log(2))]
    ]
    assert run([[0.0, 0.0]], [plain_row()]).logprobs_NL.shape == (1, 0)


def test_masked_tokens_have_logprob_minus_infinity():
    result = run([[0.0, -math.inf]], [plain_row(logprobs=2)])
    assert result.logprobs_NL.tolist() == [[0.0, 0.0, -math.inf]]


# Kinds.


def test_ids_that_must_not_end_a_request_yet_need_the_tables():
    params = SamplingParams(temperature=0, min_tokens=2)
    assert kind_of(row_of(params, late=[3])) is EVERYTHING
    assert kind_of(row_of(params, late=[3], output=[1, 1])) is SamplingKind.GREEDY
    assert kind_of(row_of(params)) is SamplingKind.GREEDY


def test_every_number_has_an_input_that_an_empty_row_turns_off():
    """A padded row is greedy and filters nothing, whatever parameters there will be."""
    empty = build_inputs([], num_rows=1, vocab_size=VOCAB)
    off = {name: torch.tensor([one.off]) for name, one in NUMBERS.items()}
    assert_same([empty.numbers[name] for name in off], off.values())
    defaults = SamplingParams(temperature=0).values()
    assert [name for name, one in NUMBERS.items() if one.is_on(defaults[name])] == []


def test_the_cheap_path_neither_filters_nor_hashes():
    def ops(rows):
        inputs = build_inputs(rows, num_rows=1, vocab_size=VOCAB)
        return record(TapeBackend(), lambda: sample(torch.zeros(1, VOCAB), inputs, least_kind(rows)))[0].log

    greedy, random, filtering = ops([plain_row(temperature=0)]), ops([plain_row()]), ops([plain_row(top_p=0.5)])
    assert [log.count("playhead::least_keys_into") for log in (greedy, random, filtering)] == [0, 0, 1]
    assert greedy.count("aten::bitwise_xor_") == 0


# Captured.


@settings(max_examples=30)
@given(st.lists(st.tuples(logit_rows, sampler_rows()), min_size=3, max_size=3))
def test_a_recorded_sampler_replays_what_eager_computes(batch):
    """Recorded on empty rows; nothing of their values may be left in the tape."""
    logits = torch.zeros(4, VOCAB)
    inputs = build_inputs([], num_rows=4, vocab_size=VOCAB)
    recording, output = record(TapeBackend(), lambda: sample(logits, inputs))

    rows = [row for _, row in batch]
    fresh = build_inputs(rows, num_rows=4, vocab_size=VOCAB)
    refill(inputs, fresh)
    logits[:3] = torch.tensor([x for x, _ in batch])
    recording.replay()
    assert_same(output, sample(logits, fresh))


def test_a_recorded_step_advances_itself():
    """Six replays without the host equal six steps with inputs built anew, past the end of min_tokens."""
    bias = {3: 1.0, 5: 3.0}
    params = SamplingParams(
        presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2, min_tokens=3, logit_bias=bias
    )
    seeded = [dataclasses.replace(params, seed=seed) for seed in (8, 9)]
    start = [row_of(one, prompt=[1, 2], late=[0, 3], bad_words=[(t, 5) for t in range(VOCAB)]) for one in seeded]
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2))
    inputs = build_inputs(start, num_rows=2, vocab_size=VOCAB)

    def step():
        result = sample(logits, inputs)
        inputs.numbers["num_generated"].add_(1)
        inputs.tables.take_(inputs.rows_N, result.tokens_N)
        return result

    recording, output = record(TapeBackend(), step)
    refill(inputs, build_inputs(start, num_rows=2, vocab_size=VOCAB))
    outputs = [[], []]
    for _ in range(6):
        rows = [dataclasses.replace(row, output=list(ids)) for row, ids in zip(start, outputs, strict=True)]
        wanted = run(logits.tolist(), rows).tokens_N.tolist()
        recording.replay()
        assert output.tokens_N.tolist() == wanted
        for ids, token in zip(outputs, wanted, strict=True):
            ids.append(token)
