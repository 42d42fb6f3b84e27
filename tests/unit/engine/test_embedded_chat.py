"""The embedded model talks out of the box: a scene of two speakers, and each answer ends with its paragraph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playhead.engine.conversations import ChatOptions
from playhead.errors import CheckpointError
from playhead.llm import LLM
from playhead.models.text.tokenizer import tokenizer_from_directory
from playhead.sampling_params import SamplingParams
from tests.unit.models.text.embedded_copy import checkpoint

TALK = [
    {"role": "system", "content": "A room in the castle."},
    {"role": "user", "content": " Who's there?\n\nSpeak! "},
    {"role": "assistant", "content": "A friend."},
    {"role": "user", "content": "Do you love me?"},
]
SCENE = (
    "<bos>A room in the castle.\n\nHAMLET.\nWho's there?\nSpeak!\n\nHORATIO.\nA friend.\n\nHAMLET.\nDo you love me?\n\n"
    "HORATIO.\n"
)


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", max_model_len=256, max_num_seqs=4) as llm:
        yield llm


def test_a_conversation_is_a_scene(llm):
    assert llm.engine.reader.chat_text(TALK, ChatOptions()) == SCENE


def test_an_answer_is_one_paragraph(llm):
    """Without its end the model goes on with the next speaker; a request that ignores ends gets just that."""
    params = SamplingParams(temperature=0.8, max_tokens=60, seed=0)
    prompt = llm.chat_prompt(TALK)
    asked = [(prompt, params), (list(prompt), params), (prompt, replace(params, ignore_eos=True))]
    answer, whole, endless = (one.outputs[0] for one in llm.generate(*map(list, zip(*asked, strict=True))))
    assert answer.finish_reason == "stop"
    assert answer.text
    assert "\n\n" in whole.text
    assert answer.text == whole.text.partition("\n\n")[0]
    assert endless.text == whole.text


def test_a_conversation_alone_ends_as_it_does_in_a_list(llm):
    params = SamplingParams(temperature=0.8, max_tokens=60, seed=0)
    prompt = llm.chat_prompt(TALK)
    answers = [llm.generate(given, params)[0].outputs[0].text for given in (prompt, [prompt])]
    assert answers == [llm.chat(TALK, params)[0].outputs[0].text] * 2


def test_a_form_may_have_the_end_of_a_turn_inside(llm):
    """JSON may have two line ends between its parts: the answer to a schema was an open brace."""
    params = SamplingParams(structured_outputs={"regex": "a\n\nb"}, max_tokens=20)
    answer = llm.chat(TALK, params)[0].outputs[0]
    assert (answer.text, answer.stop_reason) == ("a\n\nb", None)
    cut = llm.chat(TALK, replace(params, stop=["\n"]))[0].outputs[0]
    assert (cut.text, cut.stop_reason) == ("a", "\n")


def test_another_template_brings_no_ends_of_this_one(llm):
    options = ChatOptions(chat_template="{{ messages[0].content }}")
    assert llm.engine.reader.chat_prompt(TALK, options).stops == ()
    assert llm.engine.reader.chat_prompt(TALK).stops == ("\n\n",)


@pytest.mark.parametrize("stops", ["x", [""], [1], ["a"] * 5, ["a" * 257]])
def test_ends_that_are_no_texts_are_refused(tmp_path, stops):
    checkpoint(tmp_path, tokenizer_config={"chat_stop_strings": stops})
    with pytest.raises(CheckpointError, match="chat_stop_strings"):
        tokenizer_from_directory(tmp_path)
