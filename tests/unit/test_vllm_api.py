"""vLLM's offline API: prompts in every form, conversations, the tokenizer, and what is refused by name."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch

from playhead import LLM, SamplingParams, TextPrompt, TokensPrompt
from playhead.engine.conversations import (
    UNSERVED_KEYWORDS,
    ChatKeywords,
    ChatOptions,
    as_conversations,
    chat_options,
    plain_messages,
)
from playhead.errors import AbsentFeature, ChatTemplateError, RequestError
from playhead.inputs import REFUSED_KEYWORDS, GenerateKeywords, as_prompts, checked_ids, plain_prompt

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</{{ m['role'] }}>{% endfor %}"
    "{% if tools %}[{{ tools[0]['name'] }}]{% endif %}{% if loud %}!{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELLO = [{"role": "user", "content": "The whale"}]


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", max_model_len=128, max_num_seqs=4, enforce_eager=True) as made:
        yield made


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    "same",
    [
        [5, 6, 7],
        (5, 6, 7),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], dtype=np.uint8),
        list(np.array([5, 6, 7])),
        torch.tensor([5, 6, 7]),
        {"prompt_token_ids": [5, 6, 7]},
        {"prompt_token_ids": np.array([5, 6, 7]), "multi_modal_data": None},
        TokensPrompt(prompt_token_ids=[5, 6, 7], prompt="told"),
        [[5, 6, 7]],
        [np.array([5, 6, 7])],
        [torch.tensor([5, 6, 7])],
        np.array([[5, 6, 7]]),
        torch.tensor([[5, 6, 7]]),
        [{"prompt_token_ids": (5, 6, 7)}],
    ],
    ids=str,
)
def test_ids_may_come_in_any_array(same):
    (prompt,) = as_prompts(same)
    plain = plain_prompt(prompt)
    assert plain.ids == [5, 6, 7]
    assert {type(token) for token in plain.ids} == {int}


def test_prompts_of_all_forms_may_stand_in_one_list(llm):
    prompts = ["The whale", {"prompt": "The whale"}, TextPrompt(prompt="The whale"), [5, 6, 7], np.array([5, 6, 7])]
    outputs = llm.generate(prompts, GREEDY)
    assert tokens(outputs)[0] == tokens(outputs)[1] == tokens(outputs)[2]
    assert tokens(outputs)[3] == tokens(outputs)[4]
    assert [output.prompt for output in outputs] == ["The whale"] * 3 + [None] * 2


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ({"prompt": "x", "multi_modal_data": {"image": 1}}, "the key 'multi_modal_data'. Leave it out: images"),
        ({"prompt": "x", "mm_processor_kwargs": {"a": 1}}, "the key 'mm_processor_kwargs'"),
        ({"prompt_embeds": torch.ones(2, 2)[0, :1]}, "the key 'prompt_embeds'.*takes no embeddings"),
        ({"prompt_token_id": [1]}, "Did you mean 'prompt_token_ids'"),
        ({"cache_salt": "a"}, "a dict without text or ids"),
        ({"prompt": 7}, "key 'prompt': a int; wanted a str"),
        ({"prompt": "x", "cache_salt": 7}, "key 'cache_salt': a int; wanted a str"),
        (np.array([0.5]), "a ndarray of other things than ints"),
        (np.array([True]), "a ndarray of other things than ints"),
        (torch.tensor([0.5]), "a Tensor of other things than ints"),
        ([[torch.tensor(0.5)]], "a list of other things than ints"),
        (b"bytes", "a bytes"),
        (7, "a int"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_by_name(llm, prompt, says):
    with pytest.raises(RequestError, match=says):
        llm.generate(prompt, GREEDY)


def test_prompts_of_different_salts_share_no_cached_prefix(llm):
    ids = list(range(5, 45))
    first, again = (llm.generate({"prompt_token_ids": ids, "cache_salt": "a"}, GREEDY)[0] for _ in range(2))
    other = llm.generate({"prompt_token_ids": ids, "cache_salt": "b"}, GREEDY)[0]
    assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 0)
    assert again.num_cached_tokens == 32
    assert tokens([first]) == tokens([again]) == tokens([other])


def test_the_models_authors_say_how_it_is_sampled(llm):
    assert llm.get_default_sampling_params().temperature == 0.8


def test_parameters_may_be_set_and_a_request_keeps_its_own(llm):
    params = llm.get_default_sampling_params()
    params.max_tokens, params.temperature = 3, 0.0
    stream = llm.stream("The whale", params)
    params.max_tokens = -1
    assert len(list(stream)[-1].outputs[0].token_ids) == 3
    with pytest.raises(RequestError, match="'max_tokens': -1; wanted"):
        llm.generate("The whale", params)
    with pytest.raises(RequestError, match="'max_tokens': -1; wanted"):
        llm.generate(["The whale"], [params])
    assert llm.get_default_sampling_params().max_tokens == 16


def test_a_reset_cache_has_no_prefix(llm):
    ids = list(range(50, 90))
    llm.generate(ids, GREEDY)
    assert llm.generate(ids, GREEDY)[0].num_cached_tokens == 32
    assert llm.reset_prefix_cache() is True
    assert llm.generate(ids, GREEDY)[0].num_cached_tokens == 0


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"prompt_token_ids": [[1]]}, r"'prompt_token_ids'. Give the ids as prompts: generate\(\[1, 2, 3\]\)"),
        ({"lora_request": object()}, "'lora_request'. Playhead has no adapters"),
        ({"prompt_adapter_request": object()}, "'prompt_adapter_request'. Playhead has no adapters"),
        ({"tokenization_kwargs": {"truncation": True}}, "Give truncate_prompt_tokens to SamplingParams"),
        ({"sampling_param": GREEDY}, "Did you mean sampling_params"),
        ({"colour": 1}, "the keyword 'colour'; wanted one of prompts, sampling_params, use_tqdm. Leave it out"),
    ],
)
def test_keywords_that_cannot_be_had_are_refused_by_name(llm, keywords, says):
    with pytest.raises(RequestError, match=says):
        llm.generate("x", **keywords)


def test_keywords_that_ask_for_nothing_are_taken(llm):
    assert llm.generate(prompts="x", sampling_params=GREEDY, use_tqdm=False, **dict.fromkeys(REFUSED_KEYWORDS))


@pytest.mark.parametrize("name", ["beam_search", "encode", "embed", "classify", "score"])
def test_a_method_that_is_not_there_says_why(name):
    with pytest.raises(AbsentFeature, match=rf"LLM\.{name}: Playhead "):
        vars(LLM)[name](None, "x")


# Conversations.


def test_one_conversation_or_many_give_a_list(llm):
    many = llm.chat([HELLO, [*HELLO, *HELLO]], GREEDY, chat_template=TEMPLATE)
    one = llm.chat(HELLO, sampling_params=GREEDY, use_tqdm=False, chat_template=TEMPLATE)
    assert (len(one), len(many)) == (1, 2)
    assert tokens(one) == tokens(many[:1])
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(one[0].prompt_token_ids) == "<user>The whale</user><assistant>"


@pytest.mark.parametrize("text", [5, None, b"a", ["a"]])
def test_what_is_no_text_is_not_encoded(llm, text):
    with pytest.raises(RequestError, match=f"encode: a {type(text).__name__}; wanted a str"):
        llm.get_tokenizer().encode(text)


def test_an_output_cannot_be_set_and_another_can_be_made(llm):
    (output,) = llm.generate("The whale", GREEDY, use_tqdm=False)
    with pytest.raises(FrozenInstanceError):
        output.outputs[0].text = "x"
    assert replace(output.outputs[0], text="x").token_ids == output.outputs[0].token_ids
    assert output.metrics.arrival_s <= output.metrics.first_token_s <= output.metrics.finished_s


def test_parts_of_text_are_joined_and_others_refused_by_name():
    parts = [{"type": "text", "text": "one"}, "two"]
    assert plain_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "one\ntwo"}]
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert plain_messages([called]) == [called]
    assert plain_messages([{"role": "user", "content": None}]) == [{"role": "user", "content": ""}]
    for kind in ("image_url", "input_audio", "video_url"):
        with pytest.raises(RequestError, match=f"a content part of type '{kind}'.*runs the text part of a model"):
            plain_messages([{"role": "user", "content": [{"type": kind, kind: {}}]}])
    with pytest.raises(RequestError, match=r"content part \{'text': 'x'\}; wanted"):
        plain_messages([{"role": "user", "content": [{"text": "x"}]}])
    with pytest.raises(RequestError, match="key 'content': a int"):
        plain_messages([{"role": "user", "content": 7}])


@pytest.mark.parametrize("messages", [[], "hello", {"role": "user"}, None])
def test_what_is_no_conversation_is_refused(messages):
    with pytest.raises(RequestError, match="wanted a list of messages"):
        as_conversations(messages)
    with pytest.raises(RequestError, match="messages and conversations in one list"):
        as_conversations([HELLO[0], HELLO])


def test_a_template_gets_tools_and_variables(llm):
    tokenizer, tools = llm.get_tokenizer(), [{"name": "look"}]
    options = {"chat_template": TEMPLATE, "tools": tools, "chat_template_kwargs": {"loud": True}}
    text = tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True, **options)
    assert text == "<user>The whale</user>[look]!<assistant>"
    assert tokenizer.apply_chat_template(HELLO, tokenize=False, chat_template=TEMPLATE) == "<user>The whale</user>"
    ids = tokenizer.apply_chat_template(HELLO, chat_template=TEMPLATE)
    assert tokenizer.decode(ids) == "<user>The whale</user>"
    by_keyword = tokenizer.apply_chat_template(HELLO, tokenize=False, chat_template=TEMPLATE, loud=True)
    assert by_keyword == "<user>The whale</user>!"
    with pytest.raises(RequestError, match=r"the keyword 'return_tensors'\. Leave it out"):
        tokenizer.apply_chat_template(HELLO, return_tensors="pt")
    with pytest.raises(RequestError, match="the key 'messages'"):
        tokenizer.apply_chat_template(HELLO, messages=[])
    assert tokenizer.apply_chat_template(HELLO, chat_template=TEMPLATE, padding=False, return_dict=None) == ids
    with pytest.raises(ChatTemplateError):
        llm.chat(HELLO, GREEDY, chat_template="{{ raise_exception('no') }}")


def test_the_last_message_can_be_continued(llm):
    messages = [*HELLO, {"role": "assistant", "content": "It was "}]
    options = {"add_generation_prompt": False, "continue_final_message": True, "chat_template": TEMPLATE}
    (output,) = llm.chat(messages, GREEDY, **options)
    prompt = llm.get_tokenizer().decode(output.prompt_token_ids)
    assert prompt == "<user>The whale</user><assistant>It was "
    left_out = {**options, "chat_template": "{{ messages[0]['content'] }}"}
    calls = {"content": None, "tool_calls": [{"id": "1"}]}
    for last, keywords in (({"content": "It was"}, left_out), (calls, options)):
        with pytest.raises(RequestError, match="whose text the chat template leaves out"):
            llm.chat([*HELLO, {"role": "assistant", **last}], GREEDY, **keywords)


@pytest.mark.parametrize("last", ["<", "a", "/assistant", "", "It was", "The whale"])
def test_the_last_message_is_found_whatever_the_template_writes_after_it(llm, last):
    """Its text may stand in the words of the template, or be nothing at all."""
    messages = [*HELLO, {"role": "assistant", "content": f" {last}"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    for template, wanted in ((TEMPLATE, f" {last}"), (TEMPLATE.replace("content']", "content'] | trim"), last)):
        (output,) = llm.chat(messages, GREEDY, chat_template=template, **options)
        prompt = llm.get_tokenizer().decode(output.prompt_token_ids)
        assert prompt == f"<user>The whale</user><assistant>{wanted}"


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"continue_final_message": True}, "one of them"),
        ({"add_generation_prompt": 1}, "add_generation_prompt: a int; wanted True or False"),
        ({"tools": {"name": "x"}}, "tools: a dict; wanted a list of tables"),
        ({"chat_template": 7}, "chat_template: a int; wanted Jinja source"),
        ({"lora_request": object()}, "'lora_request'. Playhead has no adapters"),
        ({"tokenization_kwargs": {}}, "'tokenization_kwargs'. Give truncate_prompt_tokens"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        ({"chat_template_content_format": "openai"}, "wanted 'auto' or 'string'"),
        ({"chat_templat": "x"}, "Did you mean chat_template"),
        ({"chat_template_kwargs": {"tools": []}}, "the key 'tools'"),
        ({"chat_template_kwargs": {"self": 1}}, "the key 'self'"),
        ({"chat_template_kwargs": {1: 1}}, "the key 1"),
    ],
)
def test_chat_keywords_that_cannot_be_had_are_refused_by_name(keywords, says):
    with pytest.raises(RequestError, match=says):
        chat_options(keywords)


def test_type_checkers_see_the_keywords_of_calls():
    foreign = {"chat_template_content_format", "mm_processor_kwargs", *UNSERVED_KEYWORDS}
    assert set(ChatKeywords.__annotations__) == {*ChatOptions.__dataclass_fields__, *foreign}
    asks_nothing = {name: None for name in ChatKeywords.__annotations__ if name in foreign | {"tools", "chat_template"}}
    assert chat_options({**asks_nothing, "chat_template_content_format": "auto", "chat_template_kwargs": None})
    assert set(GenerateKeywords.__annotations__) == set(REFUSED_KEYWORDS)


# The tokenizer, and settings by name.


def test_the_tokenizer_has_the_methods_users_know(llm):
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("The whale")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "The whale"
    assert tokenizer("The whale").input_ids == tokenizer("The whale")["input_ids"] == ids
    assert tokenizer("The whale").attention_mask == [1] * len(ids)
    assert tokenizer(["The", "whale"])["input_ids"] == [tokenizer.encode("The"), tokenizer.encode("whale")]
    assert tokenizer.batch_decode([np.array(ids), ids], skip_special_tokens=True) == ["The whale"] * 2
    assert tokenizer.vocab_size == len(tokenizer) == len(tokenizer.get_vocab())
    assert tokenizer.eos_token_id in tokenizer.all_special_ids
    assert tokenizer.convert_tokens_to_ids(tokenizer.eos_token) == tokenizer.eos_token_id
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids
    assert tokenizer.convert_tokens_to_ids(["no such token"]) == [None]
    assert tokenizer.decode(tokenizer.eos_token_id) == tokenizer.eos_token
    assert llm.generate("The whale", GREEDY)[0].prompt_token_ids == ids


def test_ids_are_copied_and_plain():
    given = [1, 2]
    assert checked_ids(given) is not given
    assert checked_ids([np.int64(3), 4]) == [3, 4]


def test_settings_by_vllms_names_make_an_engine():
    settings = {"dtype": torch.float32, "tokenizer": "embedded", "gpu_memory_utilization": 0.5, "seed": 1}
    settings["generation_config"] = "vllm"
    with LLM("embedded", max_model_len=64, block_size=8, tensor_parallel_size=1, swap_space=4, **settings) as llm:
        assert (llm.config.dtype, llm.config.page_size, llm.config.seed) == ("float32", 8, 1)
        assert llm.config.tokenizer == "embedded"
        assert llm.generate("The whale", GREEDY)[0].outputs[0].text
        assert llm.get_default_sampling_params() == SamplingParams()
