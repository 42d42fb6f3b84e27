"""What few requests ask for, through the whole engine on its own graphs, with steps launched ahead."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from playhead.engine.async_engine import AsyncEngine
from playhead.engine.bad_words import bad_word_ids
from playhead.engine.front import RequestOptions
from playhead.engine.response import ResponseBuilder
from playhead.engine.seeds import seed_of
from playhead.errors import RequestError, RequestFailed
from playhead.llm import LLM
from playhead.outputs import FinishReason
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.testing.field_mutants import FIELD_CHECKERS
from playhead.testing.mutant import Oracles, Outcome, swapped
from playhead.testing.tiny_engine import greedy, tiny_engine

WHALE = "The whale"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.5, max_tokens=10, seed=3, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    sizes = {"max_model_len": 96, "max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_memory_bytes": 1 << 24}
    with LLM("embedded", overlap=True, **sizes) as made:
        yield made


@pytest.fixture(scope="module")
def plain(llm):
    """What the model says when nothing is asked of it."""
    return llm.generate(WHALE, GREEDY)[0].outputs[0]


@pytest.fixture(scope="module")
def oracles():
    return Oracles()


def completion(llm, prompt, params):
    return llm.generate(prompt, params)[0].outputs[0]


@pytest.mark.parametrize("checker", FIELD_CHECKERS, ids=lambda checker: checker.name)
def test_the_fields_hold_in_a_crowd(checker, oracles):
    """Against plain attention: overlapped in so little memory that some are preempted, and one step after another."""
    answer = oracles.ask(checker)
    assert (answer.outcome, answer.said) == (Outcome.SILENT, "")


# Text.


def test_a_stop_string_may_stay_in_the_text(llm, plain):
    stop = plain.text[10:14]
    params = replace(GREEDY, stop=[stop], include_stop_str_in_output=True)
    shown = [output.outputs[0].text for output in llm.stream(WHALE, params)]
    assert shown[-1] == plain.text[: plain.text.index(stop) + len(stop)]
    assert all(after.startswith(before) for before, after in itertools.pairwise(shown))
    assert completion(llm, WHALE, params).text == shown[-1]


def test_a_stop_token_may_stay_in_the_text(llm, plain):
    params = replace(GREEDY, stop_token_ids=[plain.token_ids[3]], include_stop_str_in_output=True)
    found = completion(llm, WHALE, params)
    assert found.text == llm.tokenizer.decode(found.token_ids)
    assert found.text != completion(llm, WHALE, replace(params, include_stop_str_in_output=False)).text


def test_without_detokenizing_there_are_tokens_and_no_text(llm, plain):
    params = replace(GREEDY, detokenize=False, logprobs=1, prompt_logprobs=0)
    (output,) = llm.generate(WHALE, params)
    assert (output.outputs[0].token_ids, output.outputs[0].text) == (plain.token_ids, "")
    tables = [*output.outputs[0].logprobs, *output.prompt_logprobs[1:]]
    assert {entry.decoded_token for table in tables for entry in table.values()} == {None}
    assert [output.outputs[0].text for output in llm.stream(WHALE, params)] == [""] * 12


@pytest.mark.parametrize("kept", [1, 3, 500])
def test_a_prompt_is_cut_to_its_last_tokens(llm, kept):
    ids = llm.tokenizer.encode("The whale and the sea " * 3, add_special_tokens=True)
    (cut,) = llm.generate("The whale and the sea " * 3, replace(GREEDY, truncate_prompt_tokens=kept))
    assert cut.prompt_token_ids == ids[-kept:]
    assert cut.outputs[0].token_ids == completion(llm, ids[-kept:], GREEDY).token_ids


def test_a_text_longer_than_the_context_is_cut_to_what_fits(llm):
    (output,) = llm.generate("The whale and the sea " * 200, replace(GREEDY, truncate_prompt_tokens=-1))
    assert (len(output.prompt_token_ids), len(output.outputs[0].token_ids)) == (96 - 12, 12)


def test_a_text_far_longer_than_the_context_is_cut_to_its_last_tokens(llm):
    text = " ".join(f"The whale and {i} seas" for i in range(20_000))
    ids = llm.tokenizer.encode(text, add_special_tokens=True)
    (cut,) = llm.generate(text, replace(GREEDY, truncate_prompt_tokens=50))
    assert cut.prompt_token_ids == ids[-50:]


@pytest.mark.parametrize("streams", [False, True])
def test_a_stop_string_that_begins_before_min_tokens_and_ends_after_them_is_found(llm, plain, streams):
    """It is complete with the fourth token, the first that may end the answer."""
    first, last = (len(llm.tokenizer.decode(plain.token_ids[:n])) for n in (2, 3))
    stop = plain.text[first - 1 : last + 1]
    params = replace(GREEDY, stop=[stop], min_tokens=3)
    found = list(llm.stream(WHALE, params))[-1].outputs[0] if streams else completion(llm, WHALE, params)
    assert (found.text, found.token_ids, found.stop_reason) == (plain.text[: first - 1], plain.token_ids[:4], stop)


def test_a_stop_string_that_min_tokens_have_is_no_stop(llm, plain):
    """As an end token may be the fourth of an answer with three tokens at least, and not the third."""
    third = llm.tokenizer.decode(plain.token_ids[2:3])
    assert plain.text.count(third) == 1
    assert completion(llm, WHALE, replace(GREEDY, stop=[third], min_tokens=3)).text == plain.text
    assert completion(llm, WHALE, replace(GREEDY, stop=[third], min_tokens=2)).token_ids == plain.token_ids[:3]


# Forbidden tokens.


def test_an_end_token_waits_for_min_tokens_where_it_is_ignored_too(llm):
    (eos,) = llm.tokenizer.special.eos_ids
    params = SamplingParams(
        temperature=0, max_tokens=5, min_tokens=3, ignore_eos=True, stop_token_ids=[77], logit_bias={eos: 100, 77: 50}
    )
    tokens = completion(llm, WHALE, params).token_ids
    assert (tokens[3:], {eos, 77}.isdisjoint(tokens[:3])) == ([eos, eos], True)


def test_a_bad_word_is_forbidden_at_the_start_of_a_text_and_after_a_space(llm):
    encode = llm.tokenizer.encode
    spellings = [tuple(encode(text, add_special_tokens=False)) for text in ("whale", " whale")]
    assert spellings[0] != spellings[1]
    assert bad_word_ids(["whale", "  whale"], llm.tokenizer) == tuple(spellings)


def test_bad_words_never_come_out(llm, plain):
    """Words that the model says when it is free, of one token and of several, alone and as three samples."""
    words = [plain.text[3:12], *(word for word in plain.text.split() if word.isalpha())]
    assert {len(ids) for ids in bad_word_ids(words, llm.tokenizer)} > {1}
    for params in (GREEDY, replace(DRAWN, n=3)):
        (output,) = llm.generate(WHALE, replace(params, bad_words=words))
        for sample in output.outputs:
            for ids in bad_word_ids(words, llm.tokenizer):
                assert not any(tuple(sample.token_ids[i : i + len(ids)]) == ids for i in range(12))
    assert completion(llm, WHALE, GREEDY).token_ids == plain.token_ids, "the row is free again"


def test_only_allowed_tokens_come_out(llm, plain):
    """Beside a request that may say anything: both get what they get alone."""
    allowed = list(range(100, 160))
    params = replace(DRAWN, n=3, allowed_token_ids=allowed)
    alone = llm.generate(WHALE, params)[0].outputs
    assert {token for sample in alone for token in sample.token_ids} <= set(allowed)
    few, free = llm.generate([WHALE, WHALE], [params, GREEDY])
    assert [sample.token_ids for sample in few.outputs] == [sample.token_ids for sample in alone]
    assert free.outputs[0].token_ids == plain.token_ids


def test_one_allowed_token_is_the_only_one(llm):
    found = completion(llm, WHALE, replace(DRAWN, allowed_token_ids=[777]))
    assert found.token_ids == [777] * 10


@pytest.mark.parametrize(
    "fields",
    [{"bad_words": ["\n"]}, {"min_tokens": 2, "stop_token_ids": [201]}],
    ids=["bad words", "min_tokens"],
)
def test_fields_that_forbid_every_token_are_refused(llm, fields):
    assert (201,) in bad_word_ids(["\n"], llm.tokenizer)
    with pytest.raises(
        RequestError, match="'allowed_token_ids': 1 token ids, and bad_words or min_tokens forbid every"
    ):
        llm.engine.add_request("stuck", WHALE, SamplingParams(allowed_token_ids=[201], **fields))


def test_a_bias_may_have_an_entry_for_every_token(llm):
    """One token is raised above all others, which have entries too."""
    bias = dict.fromkeys(range(4096), -5.0) | {99: 1e6}
    assert completion(llm, WHALE, replace(GREEDY, logit_bias=bias)).token_ids == [99] * 12


def test_a_request_may_have_thousands_of_stop_tokens(llm, plain):
    params = replace(GREEDY, stop_token_ids=list(range(4096)), min_tokens=0)
    found = completion(llm, WHALE, params)
    assert (found.token_ids, found.finish_reason) == (plain.token_ids[:1], FinishReason.STOP)


# Logprobs of the prompt.


def test_prompt_logprobs_name_the_prompts_own_tokens(llm):
    (output,) = llm.generate("My fellow citizens,", replace(DRAWN, n=2, prompt_logprobs=2))
    first, *tables = output.prompt_logprobs
    assert first is None
    for token, table in zip(output.prompt_token_ids[1:], tables, strict=True):
        assert next(iter(table)) == token
        assert sorted(entry.rank for entry in table.values())[:2] == [1, 2]
        assert all(entry.logprob <= 0 for entry in table.values())
    texts = [table[token].decoded_token for token, table in zip(output.prompt_token_ids[1:], tables, strict=True)]
    assert "".join(texts) == "My fellow citizens,"


def test_prompt_logprobs_are_the_same_with_a_cached_prefix_and_streamed(llm):
    prompt, params = [5, 6, 7, 8] * 12, replace(GREEDY, prompt_logprobs=1)
    llm.generate(prompt, GREEDY)
    (cached,) = llm.generate([*prompt, 9], GREEDY)
    (output,) = llm.generate([*prompt, 9], params)
    assert (cached.num_cached_tokens > 0, output.num_cached_tokens) == (True, 0)
    streamed = list(llm.stream([*prompt, 9], params))
    assert streamed[-1].prompt_logprobs == output.prompt_logprobs
    assert output.outputs[0].token_ids == cached.outputs[0].token_ids


def test_a_prompt_of_one_token_has_no_logprobs(llm):
    (output,) = llm.generate([7], replace(GREEDY, prompt_logprobs=3))
    assert output.prompt_logprobs == [None]


def test_a_prompt_whose_logprobs_cannot_be_made_fails_alone(llm, plain):
    take_prompt = ResponseBuilder.take_prompt

    def fails(self: ResponseBuilder, position: int, reports) -> None:
        if self.request.prompt[0] == 7:
            raise ValueError("its text")
        take_prompt(self, position, reports)

    params = replace(GREEDY, prompt_logprobs=0)
    with swapped(ResponseBuilder, "take_prompt", fails):
        broken, whole, free = llm.generate([[7, 8, 9], [8, 9, 10], WHALE], [params, params, GREEDY])
    assert isinstance(broken.error, RequestFailed)
    assert (whole.error, len(whole.prompt_logprobs)) == (None, 3)
    assert free.outputs[0].token_ids == plain.token_ids


# What a stream shows.


def glued(outputs, index=0):
    """The parts of one sample, put together: text, tokens, and the number of logprobs."""
    parts = [one for output in outputs for one in output.outputs if one.index == index]
    tokens = list(itertools.chain(*(part.token_ids for part in parts)))
    return "".join(part.text for part in parts), tokens, sum(len(part.logprobs) for part in parts)


def test_a_delta_stream_shows_what_is_new(llm, plain):
    params = replace(
        GREEDY, output_kind=RequestOutputKind.DELTA, logprobs=1, prompt_logprobs=0, stop=[plain.text[10:14]]
    )
    outputs = list(llm.stream(WHALE, params))
    whole = completion(llm, WHALE, params)
    assert glued(outputs) == (whole.text, whole.token_ids, len(whole.token_ids))
    assert len(outputs) > 2
    assert [output.prompt_logprobs is not None for output in outputs] == [True] + [False] * (len(outputs) - 1)


def test_a_stream_of_the_end_alone_has_one_output(llm, plain):
    (output,) = llm.stream(WHALE, replace(GREEDY, output_kind=RequestOutputKind.FINAL_ONLY))
    assert output.finished
    assert output.outputs[0].token_ids == plain.token_ids


def test_a_slow_reader_of_deltas_loses_nothing(llm):
    """Unread outputs give way to newer ones; several samples grow at their own pace."""
    params = replace(DRAWN, n=3, logprobs=0, output_kind=RequestOutputKind.DELTA)
    wanted = llm.generate(WHALE, params)[0].outputs

    async def read(kind):
        async with AsyncEngine.of(llm.engine) as engine:
            outputs = []
            async for output in engine.generate(WHALE, replace(params, output_kind=kind)):
                outputs.append(output)
                for _ in range(50):
                    await asyncio.sleep(0)
            return outputs

    deltas = asyncio.run(read(RequestOutputKind.DELTA))
    for sample in wanted:
        assert glued(deltas, sample.index) == (sample.text, sample.token_ids, len(sample.token_ids))
    (last,) = asyncio.run(read(RequestOutputKind.FINAL_ONLY))
    assert [sample.token_ids for sample in last.outputs] == [sample.token_ids for sample in wanted]


# Seeds and salts.


def tokens_of_all(engine, count, **fields):
    """What requests without a seed get, one after the other."""
    found = []
    for i in range(count):
        engine.add_request(f"r{i}", (5, 6, 7), SamplingParams(max_tokens=12, ignore_eos=True, **fields))
        while engine.has_work:
            found += [output.outputs[0].token_ids for output in engine.step() if output.finished]
    return found


def test_requests_without_a_seed_draw_fresh_ones():
    engine = tiny_engine(overlap=True)
    runs = [tokens_of_all(engine, 3), tokens_of_all(tiny_engine(overlap=True), 3)]
    assert len({tuple(tokens) for tokens in itertools.chain(*runs)}) == 6


def test_the_seed_of_an_engine_repeats_a_run():
    first, second = tokens_of_all(tiny_engine(overlap=False, seed=7), 2)
    assert tokens_of_all(tiny_engine(overlap=True, seed=7), 2) == [first, second]
    assert first != second
    assert first not in tokens_of_all(tiny_engine(overlap=True, seed=8), 2)


def test_seeds_of_an_engine_are_64_bits_and_differ_by_arrival():
    seeds = [seed_of(5, arrival) for arrival in range(100)]
    assert seeds == [seed_of(5, arrival) for arrival in range(100)]
    assert len(set(seeds)) == 100
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert seed_of(5, 1) != seed_of(6, 0)


def test_prompts_of_another_salt_share_nothing():
    engine, found = tiny_engine(overlap=True), []
    for i, (of_prompt, of_options) in enumerate([("a", ""), ("b", ""), ("a", ""), ("", "b"), ("a", "b")]):
        checked = replace(engine.reader.check(tuple(range(20)), greedy(3)), salt=of_prompt)
        engine.submit(f"r{i}", checked, RequestOptions(salt=of_options))
        while engine.has_work:
            found += [output.num_cached_tokens > 0 for output in engine.step() if output.finished]
    assert found == [False, False, True, True, True]
