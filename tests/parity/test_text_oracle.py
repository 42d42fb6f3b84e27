"""Texts of the embedded model's answers, against transformers' tokenizer and model over the same files.

The oracle of stop strings is vLLM's rule in a few lines: after every token, the first stop string that the newest
characters complete ends the text. Tokens up to `min_tokens` complete none.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest
import torch
import transformers

from playhead.engine.tokenizer_files import resolve_model_name
from playhead.llm import LLM
from playhead.sampling_params import RequestOutputKind, SamplingParams
from tests.parity.oracle import their_logits
from tests.parity.sampling_oracle import Asked, wrong_logprobs, wrong_tokens

NUM_CASES = int(os.environ.get("PLAYHEAD_TEXT_CASES", "24"))
PROMPTS = ("The whale", "My lord,", "日本", "é")
OPEN = "\ufffd"  # what transformers shows of a character whose last byte is not there yet
FREE = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(resolve_model_name("embedded"))


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", max_model_len=96, max_num_seqs=8, kv_memory_bytes=1 << 24, graph_mode="eager") as made:
        yield made


class Texts:
    """The text of an answer's first tokens, as transformers decodes it behind the prompt."""

    def __init__(self, tokenizer, prompt_ids, token_ids, *, skips):
        self._decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False)
        self._prompt, self._ids = list(prompt_ids), list(token_ids)

    def upto(self, count):
        return self._decode(self._prompt + self._ids[:count])[len(self._decode(self._prompt)) :]

    def settled(self, count):
        """Without a character that has only begun."""
        return self.upto(count).rstrip(OPEN)


def stopped(texts, tokens, params):
    """Text, number of tokens and reason of an answer, from the tokens that a run without stop strings had."""
    is_kept, ids = params.include_stop_str_in_output, set(params.stop_token_ids or ())
    for count, token in enumerate(tokens, start=1):
        ends = token in ids and count > params.min_tokens
        text = texts.settled(count if is_kept or not ends else count - 1)
        known = len(texts.settled(count - 1))
        if count > params.min_tokens:
            places = ((text.find(stop, max(0, known - len(stop) + 1)), stop) for stop in params.stop)
            at, stop = min((place for place in places if place[0] >= 0), default=(-1, ""))
            if at >= 0:
                return text[: at + len(stop) * is_kept], count, stop
        if ends:
            return texts.upto(count if is_kept else count - 1), count, token
    return texts.upto(len(tokens)), len(tokens), None


@pytest.fixture(scope="module")
def free(llm):
    """Answers without stops: likely texts, and any tokens at all, which cut characters in pieces."""
    rng = random.Random(3)
    params = [
        replace(FREE, temperature=rng.choice([0.8, 1000.0]), seed=i, skip_special_tokens=i % 3 > 0)
        for i in range(NUM_CASES)
    ]
    prompts = [PROMPTS[i % 4] for i in range(NUM_CASES)]
    return list(zip(prompts, params, llm.generate(prompts, params), strict=True))


def texts_of(tokenizer, params, output):
    token_ids = output.outputs[0].token_ids
    return Texts(tokenizer, output.prompt_token_ids, token_ids, skips=params.skip_special_tokens)


def test_texts_are_transformers_texts_of_the_same_tokens(tokenizer, free):
    for prompt, params, output in free:
        assert output.prompt_token_ids == tokenizer.encode(prompt)
        assert output.outputs[0].text == texts_of(tokenizer, params, output).upto(FREE.max_tokens)


def with_stops(rng, params, output):
    """Parts of the text as stop strings, wherever tokens begin and end; and often a token and `min_tokens`."""
    text, tokens = output.outputs[0].text, output.outputs[0].token_ids
    starts = [rng.randrange(len(text)) for _ in range(rng.randint(1, 3))]
    parts = [text[start : start + rng.randint(1, 6)] for start in starts]
    return replace(
        params,
        stop=[*(part for part in parts if OPEN not in part), "no such text"],
        stop_token_ids=[tokens[6]] if rng.random() < 0.3 and tokens[6] not in tokens[:6] else [],
        min_tokens=rng.choice([0, 0, 1, 3, 6]),
        include_stop_str_in_output=rng.random() < 0.4,
    )


@pytest.fixture(scope="module")
def stops(llm, free):
    rng = random.Random(4)
    cases = [(prompt, with_stops(rng, params, output), output) for prompt, params, output in free]
    cases = [case for case in cases if not end_is_moved(case[1], case[2], llm)]
    found = llm.generate([prompt for prompt, _, _ in cases], [params for _, params, _ in cases])
    return [(*case, one.outputs[0]) for case, one in zip(cases, found, strict=True)]


def end_is_moved(params, output, llm):
    """Whether `min_tokens` forbids a token of the free answer: what follows is then another answer."""
    late = {*llm.tokenizer.special.eos_ids, *params.stop_token_ids}
    return not late.isdisjoint(output.outputs[0].token_ids[: params.min_tokens])


def test_stop_strings_end_texts_where_the_oracle_does(tokenizer, stops):
    for _, params, output, found in stops:
        texts, tokens = texts_of(tokenizer, params, output), output.outputs[0].token_ids
        text, count, reason = stopped(texts, tokens, params)
        assert (found.text, found.token_ids, found.stop_reason) == (text, tokens[:count], reason), params
        assert str(found.finish_reason) == ("length" if reason is None else "stop")
    assert {type(found.stop_reason) for *_, found in stops} == {str, int, type(None)}
    assert any(params.min_tokens and isinstance(found.stop_reason, str) for _, params, _, found in stops)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_streams_add_up_to_the_whole_output(llm, stops, kind):
    for prompt, params, _, whole in stops[:6]:
        parts = [one.outputs[0] for one in llm.stream(prompt, replace(params, output_kind=kind, logprobs=0))]
        if kind is RequestOutputKind.DELTA:
            text, tokens = "".join(one.text for one in parts), [token for one in parts for token in one.token_ids]
            assert sum(len(one.logprobs) for one in parts) == len(tokens)
        else:
            text, tokens = parts[-1].text, parts[-1].token_ids
            assert len(parts) == 1 or kind is RequestOutputKind.CUMULATIVE
            assert all(b.text.startswith(a.text) for a, b in itertools.pairwise(parts))
        assert (text, tokens, parts[-1].stop_reason) == (whole.text, whole.token_ids, whole.stop_reason)


WORDS = {
    "one that the answer begins with": lambda first, text: [first],
    "that begin one another": lambda first, text: [text[:9].strip(), text[:4].strip(), text.split()[0]],
    "of several tokens": lambda first, text: [text[2:16], "the sea and the whale"],
}


@pytest.mark.parametrize("words_of", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 0.7, "top_p": 0.8, "min_p": 0.05, "seed": 5}])
def test_bad_words_take_nothing_but_their_last_token(llm, tokenizer, reference, words_of, fields):
    """At the start of a text and behind a space, whatever else a request has."""
    params = SamplingParams(max_tokens=10, min_tokens=4, logprobs=3, repetition_penalty=1.1, **fields)
    plain = llm.generate("The whale", replace(params, temperature=0))[0].outputs[0]
    words = words_of(tokenizer.decode(plain.token_ids[:1]), plain.text)
    spelled = {
        tuple(tokenizer.encode(t, add_special_tokens=False)) for w in words for t in (w.lstrip(), f" {w.lstrip()}")
    }
    (output,) = llm.generate("The whale", replace(params, bad_words=words))
    asked = Asked(tuple(output.prompt_token_ids), params, llm.tokenizer.special.eos_ids, tuple(sorted(spelled)))
    logits_TV = their_logits(reference, (*asked.prompt, *output.outputs[0].token_ids))
    assert wrong_tokens(logits_TV, asked, output.outputs[0]) == []
    assert wrong_logprobs(logits_TV, asked, output.outputs[0]) == []


@pytest.fixture(scope="module")
def reference():
    model = transformers.AutoModelForCausalLM.from_pretrained(resolve_model_name("embedded"), dtype=torch.float32)
    return model.eval()


def test_samples_of_a_seed_are_requests_with_the_seeds_after_it(llm):
    params = SamplingParams(max_tokens=6, seed=11, temperature=1.2, logprobs=1)
    (together,) = llm.generate("The whale", replace(params, n=3))
    alone = llm.generate(["The whale"] * 3, [replace(params, seed=11 + i) for i in range(3)])
    assert [one.token_ids for one in together.outputs] == [one.outputs[0].token_ids for one in alone]
    assert [one.index for one in together.outputs] == [0, 1, 2]


@pytest.mark.parametrize("kept", [1, 3, 5])
def test_a_cut_prompt_is_the_last_ids_of_transformers_tokenizer(llm, tokenizer, kept):
    text = "The whale and the sea"
    (output,) = llm.generate(text, replace(FREE, max_tokens=1, truncate_prompt_tokens=kept, detokenize=False))
    assert (output.prompt_token_ids, output.outputs[0].text) == (tokenizer.encode(text)[-kept:], "")
