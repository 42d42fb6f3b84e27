"""Bad input through the library: each is refused with the limit and what was found, and nobody else notices."""

from __future__ import annotations

import math

import pytest

from playhead.errors import RequestError
from playhead.kv.ledger import Ledger
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CONTEXT = 96
VOCABULARY = 4096

# The field, the value, what the refusal says of the value, and what it says of the limit.
FIELDS = [
    ("n", 0, "0", "an integer from 1 to 16"),
    ("n", 20_000, "20000", "an integer from 1 to 16384"),
    ("n", True, "True", "an integer from 1 to 16"),
    ("n", 2.0, "2.0", "an integer from 1 to 16"),
    ("stop", ["a"] * 5000, "5000 entries", "at most 4096 strings of 1 to 65536 characters"),
    ("stop", "x" * 70_000, "a string of 70000 characters", "at most 4096 strings of 1 to 65536 characters"),
    ("stop", [""], "a string of 0 characters", "at most 4096 strings of 1 to 65536 characters"),
    ("stop", [7], "7", "at most 4096 strings of 1 to 65536 characters"),
    ("stop_token_ids", [VOCABULARY], "token id 4096", "ids in [0, 4096), the vocabulary"),
    ("stop_token_ids", [1.0], "1.0", "token ids: integers from 0"),
    ("stop_token_ids", {10**5000}, "a set", "at most 2097152 token ids"),
    ("allowed_token_ids", [VOCABULARY], "token id 4096", "ids in [0, 4096), the vocabulary"),
    ("allowed_token_ids", [], "[]", "at least one token id, or None for all of them"),
    ("bad_words", ["whale " * 40], "'whale whale", "at most 17 in one word"),
    ("bad_words", [f"word{i}x" for i in range(300)], "600 spellings of several tokens", "at most 256; of one token"),
    ("truncate_prompt_tokens", 0, "0", "at least 1, or -1 for as many as fit"),
    ("detokenize", 0, "0", "True or False"),
    ("prompt_logprobs", -1, "-1", "an integer from 0 to 20"),
    ("logits_processors", [print], "not supported", "A captured graph cannot call Python"),
    ("logprobs", 21, "21", "an integer from 0 to 20"),
    ("logprobs", -1, "-1", "an integer from 0 to 20"),
    ("logit_bias", {VOCABULARY: 1.0}, "token id 4096", "ids in [0, 4096), the vocabulary"),
    ("logit_bias", {10**5000: 1.0}, "token id an integer of 16610 bits", "ids in [0, 4096), the vocabulary"),
    ("logit_bias", {-1: 1.0}, "-1", "token ids: integers from 0"),
    ("logit_bias", {"1": 1.0}, "'1'", "token ids: integers from 0"),
    ("logit_bias", {1: 1e10}, "10000000000.0", "from -1e+09 to 1e+09"),
    ("logit_bias", {1: math.nan}, "nan", "from -1e+09 to 1e+09"),
    ("logit_bias", [1], "[1]", "at most 2097152 pairs"),
    ("max_tokens", 0, "0", "a 64-bit integer from 1"),
    ("max_tokens", -5, "-5", "a 64-bit integer from 1"),
    ("max_tokens", 1.5, "1.5", "a 64-bit integer from 1"),
    ("max_tokens", "9", "'9'", "a 64-bit integer from 1"),
    ("max_tokens", 10**5000, "an integer of 16610 bits", "a 64-bit integer from 1"),
    ("min_tokens", 9, "9", "at most max_tokens, 8"),
    ("temperature", -1, "-1", "a finite number from 0"),
    ("temperature", math.inf, "inf", "a finite number from 0"),
    ("temperature", math.nan, "nan", "a finite number from 0"),
    ("temperature", "1", "'1'", "a finite number from 0"),
    ("top_p", 0, "0", "above 0 and at most 1"),
    ("top_p", 1.5, "1.5", "above 0 and at most 1"),
    ("top_k", -2, "-2", "a 64-bit integer from -1"),
    ("min_p", 1.1, "1.1", "from 0 to 1"),
    ("repetition_penalty", 0, "0", "above 0 and at most 1e+06"),
    ("presence_penalty", 2.1, "2.1", "from -2 to 2"),
    ("frequency_penalty", -3, "-3", "from -2 to 2"),
    ("seed", 2**63, "an integer of 64 bits", "a 64-bit integer"),
    ("ignore_eos", 1, "1", "True or False"),
]

# The prompt, and what the refusal says of it and of the limit.
PROMPTS = [
    ([], "0 tokens", "at least 1"),
    ([1, VOCABULARY], "token id 4096", "ids in [0, 4096)"),
    ([1, -1], "token id -1", "ids in [0, 4096)"),
    ([1, 10**5000], "token id an integer of 16610 bits", "ids in [0, 4096)"),
    ([1, True], "a list of other things than ints", "text, or token ids"),
    ([1, 2.0], "a list of other things than ints", "text, or token ids"),
    ([1, "2"], "a list of other things than ints", "text, or token ids"),
    (b"abc", "a bytes of other things than ints", "text, or token ids"),
    (7, "a int of other things than ints", "text, or token ids"),
    ("\ud800", "text that is not Unicode at character 0", "characters that UTF-8 can write"),
    ([1] * CONTEXT, "96 tokens", "at most 95, which leaves one of the context of 96"),
    ("the whale " * 100, "tokens", "at most 95, which leaves one of the context of 96"),
]


@pytest.fixture(scope="module")
def llm():
    settings = {"max_model_len": CONTEXT, "max_num_seqs": 2, "max_num_batched_tokens": 32, "kv_memory_bytes": 1 << 24}
    with LLM("embedded", **settings) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(llm):
    return llm.generate("The whale", GREEDY)[0].outputs[0].token_ids


def refusal(llm: LLM, wanted: tuple[int, ...], act) -> str:
    """What `act` is refused with, while another request is in flight that then gets its own tokens."""
    stream = llm.stream("The whale", GREEDY)
    next(stream)
    with pytest.raises(RequestError) as refused:
        act()
    assert list(stream)[-1].outputs[0].token_ids == wanted
    assert not llm.engine.has_work
    assert Ledger(llm.engine.worker.kv).audit() == []
    return str(refused.value)


@pytest.mark.parametrize(("name", "value", "found", "limit"), FIELDS, ids=[f"{f[0]}: {f[2]}" for f in FIELDS])
def test_a_bad_sampling_field_is_refused(llm, wanted, name, value, found, limit):
    fields = {"max_tokens": 8, name: value}
    said = refusal(llm, wanted, lambda: llm.generate([5, 6], SamplingParams(**fields)))
    assert said.startswith(f"sampling field {name!r}: {found}")
    assert limit in said


@pytest.mark.parametrize(("prompt", "found", "limit"), PROMPTS, ids=[found for _, found, _ in PROMPTS])
def test_a_bad_prompt_is_refused(llm, wanted, prompt, found, limit):
    said = refusal(llm, wanted, lambda: list(llm.stream(prompt, GREEDY)))
    assert said.startswith("prompt: ")
    assert found in said
    assert limit in said


@pytest.mark.parametrize(
    ("prompts", "params", "says"),
    [
        ([[5, 6], [1, VOCABULARY]], GREEDY, "token id 4096; wanted ids in"),
        ([1, "a"], GREEDY, "ids and whole prompts in one list"),
        ({"a": 1}, GREEDY, "prompt: the key 'a'; wanted one of prompt, prompt_token_ids, cache_salt"),
        (["a", "b"], [GREEDY], "params: 1 sets of parameters; wanted one SamplingParams, or 2"),
        (["a"], [{"n": 1}], "params: a dict; wanted SamplingParams"),
        ("a", 7, "params: a int; wanted one SamplingParams, or 1"),
    ],
)
def test_a_bad_call_is_refused_before_any_of_it_runs(llm, wanted, prompts, params, says):
    assert says in refusal(llm, wanted, lambda: llm.generate(prompts, params))


@pytest.mark.parametrize("lengths", [{"min_tokens": 90, "max_tokens": None}, {"max_tokens": 90}])
def test_tokens_that_cannot_fit_are_refused_with_both_numbers(llm, wanted, lengths):
    said = refusal(llm, wanted, lambda: llm.generate([1] * 10, SamplingParams(**lengths)))
    assert said.startswith(f"sampling field {next(iter(lengths))!r}")
    assert "90 after a prompt of 10 tokens; wanted at most 86, what the context of 96 leaves" in said


def test_a_full_queue_refuses_with_the_limit_and_the_others_are_served(llm, wanted):
    names = [f"waiting {i}" for i in range(8)]

    def fill_and_send_one_more():
        for name in names:
            llm.engine.add_request(name, "The whale", GREEDY)
        assert not llm.engine.can_take
        llm.engine.add_request("one more", "The whale", GREEDY)

    stream = llm.stream("The whale", GREEDY)
    next(stream)
    with pytest.raises(RequestError, match="'one more': 8 requests waiting; wanted fewer than 8"):
        fill_and_send_one_more()
    stream.close()
    outputs = {}
    while llm.engine.has_work:
        outputs |= {output.request_id: output for output in llm.engine.step()}
    assert [outputs[name].outputs[0].token_ids for name in names] == [wanted] * 8


def test_an_id_in_use_is_refused(llm, wanted):
    def twice():
        llm.engine.add_request("same", [5, 6], GREEDY)
        try:
            llm.engine.add_request("same", [5, 6], GREEDY)
        finally:
            llm.engine.abort("same")

    assert "request 'same': an id in use; wanted a new id" in refusal(llm, wanted, twice)
