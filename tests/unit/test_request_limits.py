"""What a server allows its clients: each limit is at its number, and the error says the field and the number."""

from __future__ import annotations

import pytest

from playhead.errors import RequestError
from playhead.request_limits import RequestLimits
from playhead.sampling_params import SamplingParams

# The field, the most of it, one more, and what the refusal says.
CASES = [
    ("n", 16, 17, "17; wanted at most 16 here"),
    ("stop", ["a"] * 4, ["a"] * 5, "5 strings; wanted at most 4 here"),
    ("stop", ["x" * 256], ["x" * 257], "257 characters in one string; wanted at most 256 here"),
    ("stop_token_ids", list(range(128)), list(range(129)), "129 token ids; wanted at most 128 here"),
    ("logit_bias", dict.fromkeys(range(300), 1.0), dict.fromkeys(range(301), 1.0), "301 entries; wanted at most 300"),
    ("logit_bias", {1: -100, 2: 100.0}, {1: -100.5}, "100.5 in either direction; wanted at most 100 here"),
    ("repetition_penalty", 2.0, 2.1, "2.1; wanted at most 2 here"),
    ("bad_words", ["a"] * 64, ["a"] * 65, "65 strings; wanted at most 64 here"),
    ("bad_words", ["x" * 256], ["x" * 257], "257 characters in one string; wanted at most 256 here"),
    ("allowed_token_ids", list(range(1024)), list(range(1025)), "1025 token ids; wanted at most 1024 here"),
]


@pytest.mark.parametrize(("field", "most", "more", "says"), CASES, ids=[f"{case[0]}: {case[3]}" for case in CASES])
def test_a_server_refuses_more_than_its_limit(field, most, more, says):
    RequestLimits().check(SamplingParams(**{field: most}))
    with pytest.raises(RequestError, match=f"^sampling field '{field}': {says}"):
        RequestLimits().check(SamplingParams(**{field: more}))


def test_every_limit_can_be_set():
    with pytest.raises(RequestError, match="'logprobs': 5; wanted at most 4 here"):
        RequestLimits(logprobs=4).check(SamplingParams(logprobs=5))
    with pytest.raises(RequestError, match="'prompt_logprobs': 5; wanted at most 4 here"):
        RequestLimits(logprobs=4).check(SamplingParams(prompt_logprobs=5))
    RequestLimits(n=500).check(SamplingParams(n=500))
