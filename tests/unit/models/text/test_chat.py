"""Chat templates render what they should and can do nothing else."""

from __future__ import annotations

from datetime import datetime

import pytest

from playhead.errors import ChatTemplateError, RequestError
from playhead.llm import LLM
from playhead.models.text.chat import ChatTemplate
from playhead.models.text.template_worker import TemplateLimits, TemplateWorker
from tests.unit.models.text.embedded_copy import SMALL, checkpoint

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hi <b>&</b>"}]


WORKER = TemplateWorker(TemplateLimits(cpu_s=0.25))
"""One for all tests: it starts no process before it is asked."""


def render(source, messages=HELLO, **kwargs):
    return ChatTemplate(source, tokens={"bos_token": "<s>", "eos_token": "</s>"}, worker=WORKER).render(
        messages, **kwargs
    )


def test_messages_become_a_prompt():
    assert render(CHATML) == "<|im_start|>user\nHi <b>&</b><|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi <b>&</b><|im_end|>\n"


def test_tokens_switches_and_tools_reach_the_template():
    source = "{{ bos_token }}{{ enable_thinking }}{{ tools | tojson }}{{ eos_token }}"
    assert render(source, tools=[{"name": "f<"}], enable_thinking=False) == '<s>False[{"name": "f<"}]</s>'


def test_every_variable_that_transformers_sets_is_there():
    source = (
        "{{ documents is defined }} {{ documents | length if documents }} {{ tools is none }} {{ other is defined }}"
    )
    assert render(source) == "True  True False"
    assert render(source, documents=[{"text": "a"}]) == "True 1 True False"


def test_a_variable_of_the_request_comes_before_a_token_of_that_name():
    assert render("{{ eos_token }}", eos_token="mine") == "mine"


def test_the_clock_is_the_callers():
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", tokens={}, now=lambda: datetime(2026, 11, 15), worker=WORKER
    )
    assert template.render(HELLO) == "15 Nov 2026"


def test_a_block_on_its_own_line_leaves_no_blank_line():
    assert render("{% if true %}\n  yes\n{% endif %}\n") == "  yes\n"


def test_a_generation_block_is_transparent():
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hi <b>&</b>"


def test_loop_controls_work():
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_a_template_can_refuse_its_messages():
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_message_without_what_the_template_needs_is_an_error_of_the_request():
    with pytest.raises(ChatTemplateError):
        render("{{ messages[0]['content']['x'] + 1 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__closure__ }}",
        "{{ range.__self__.left }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ 'a' * 10**12 }}",
        "{{ 9 ** 9999999 }}",
        "{{ [1] * 10**9 }}",
        "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
        "{% for a in range(10**30) %}{% endfor %}",
        "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{% include 'other' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    with pytest.raises(ChatTemplateError):
        render(source)


@pytest.mark.parametrize("source", ["{{", "{% for %}", "{{ 'x' | nofilter }}", "x" * (1 << 19)])
def test_a_template_that_cannot_be_compiled_is_refused(source):
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, tokens={}, worker=WORKER)


GROWING = [
    "{{ '%999999999d' % 1 }}",
    "{{ '%.999999999f' % 1 }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{0:{1}}'.format(1, 999999999) }}",
    "{{ 'a'.encode() * 3000000000 }}",
    "{{ 'a'.center(999999999) }}",
    "{{ 'a'.ljust(999999999) }}",
    "{{ 'a'.zfill(999999999) }}",
    "{{ 'a' | center(999999999) }}",
    "{{ ('a' * 8000000).replace('a', 'a' * 1000) }}",
    "{{ ('a' * 8000000) | replace('a', 'a' * 1000) }}",
    "{{ ('a' * 3000) | indent(999999) | length and ('a\n' * 4000000) | indent(999999) }}",
    "{{ 'a'.expandtabs(999999999) ~ '\t'.expandtabs(999999999) }}",
    "{{ ('a' * 1000000).join(range(90000) | map('string')) }}",
    "{{ [1] | batch(999999999, 'x') | list }}",
    "{{ [1, 2] | slice(999999999) | list }}",
    "{{ lipsum(n=9999999) }}",
    "{{ (messages * 1000000) | tojson }}",
    "{{ messages | tojson(indent=999999999) }}",
    "{{ 10 ** 64 ** 64 ** 64 }}",
    "{{ (1).__pow__(10**9) }}",
    "{{ 3 | round(-999999999) }}",
    "{{ '1' | int(base=10) ** 99 ** 9 }}",
    "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=3) %}{% for i in range(64) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=3) %}{% for i in range(40) %}{% set ns.x = ns.x ** 64 %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in messages recursive %}{{ loop([a]) }}{% endfor %}",
    "{% for a in (range(9999) | list) %}{% for b in (('x' * 999999) | list) %}{% endfor %}{% endfor %}",
    "{{ range(99999) | list | sum(start='a') }}",
    "{{ range(99999) | map('string') | map('center', 99999) | join }}",
    "{{ cycler(*range(9)).next() * 10**9 }}{{ joiner('a' * 10**9)() }}",
    "{{ 'a' * 7000000 ~ 'a' * 7000000 }}",
    "{{ ('a' * 500000) | wordwrap(1) | wordwrap(1, wrapstring='b' * 100000) }}",
    "{{ ('a ' * 100000) | urlize(target='b' * 100000) | length }}{{ 'www.a.bc ' * 900000 | urlize }}",
    "{{ ('<a' * 1000000) | striptags }}{{ 1 / 0 }}",
    "{{ strftime_now('%Y' * 4000000) ~ strftime_now('%999999999Y') ~ 1 // 0 }}",
]

RAISING = [
    "{{ 1 / 0 }}",
    "{{ [][0].x }}",
    "{{ messages[9].content.x }}",
    "{{ missing.x }}",
    "{{ 'x'.nothing() }}",
    "{{ 'x' | int.y }}",
    "{{ 'a' + 1 }}",
    "{{ {}['a']['b'] }}",
    "{{ 'x'.index('y') }}",
    "{{ [1] | first | last }}",
    "{{ 5 | list }}",
    "{{ '%d' % 'x' }}",
    "{{ '{9}'.format(1) }}",
    "{{ range(1, 2, 0) }}",
    "{{ range('a') }}",
    "{{ strftime_now(7) }}",
    "{{ messages | tojson(indent='x' * 10**9) }}",
    "{{ self.missing() }}",
    "{{ '\\x' | urlencode(3) }}",
    "{{ 1.0e308 * 10 | int }}{{ (1.0e308 * 10) | int }}",
    "{% for a in 5 %}{% endfor %}",
    "{% extends 'x' %}",
    "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "{{ " + "-" * 90000 + "1 }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{{ [" * 2000 + "]}}" * 2000,
]


@pytest.mark.parametrize("source", GROWING, ids=lambda source: source[:60])
def test_a_template_that_takes_too_much_is_one_typed_error(source):
    with pytest.raises(ChatTemplateError, match="chat template: "):
        render(source)
    assert render(CHATML).endswith("assistant\n"), "the next conversation is served"


@pytest.mark.parametrize("source", RAISING, ids=lambda source: source[:60])
def test_whatever_a_template_raises_is_one_typed_error(source):
    with pytest.raises(ChatTemplateError, match="chat template: "):
        render(source)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a\ud800b"}],
        [{"role": "user", "content": {1, 2}}],
        [{"role": "user", "content": b"x"}],
        [{"role": "user", "content": 10**5000}],
        [{"role": "user", "content": "x" * (1 << 24)}],
        ["hello"],
        "hello",
        None,
        7,
    ],
    ids=["surrogate", "set", "bytes", "long number", "long text", "text", "bare text", "none", "number"],
)
def test_messages_that_cannot_be_handed_over_are_refused(messages):
    with pytest.raises(RequestError, match="chat: "):
        render(CHATML, messages)


def test_messages_within_messages_are_refused_when_they_never_end():
    message: dict[str, object] = {"role": "user"}
    message["content"] = message
    with pytest.raises(RequestError, match="chat: "):
        render(CHATML, [message])


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    templates = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "{{ tools | tojson }}"}]
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": templates}
    with LLM(checkpoint(tmp_path_factory.mktemp("chat"), tokenizer_config=config), **SMALL) as made:
        yield made


def test_a_model_answers_a_conversation_and_refuses_what_it_cannot_read(llm):
    prompt = llm.chat_prompt(HELLO)
    assert llm.tokenizer.decode(prompt) == render(CHATML)
    with pytest.raises(RequestError, match="not Unicode"):
        llm.chat([{"role": "user", "content": "\udcff"}])
    assert llm.chat_prompt(HELLO) == prompt


def test_a_conversation_with_tools_is_written_by_the_template_for_tools(llm):
    """The default template has no place for them, and the model would never hear of them."""
    write, tools = llm.get_tokenizer().apply_chat_template, [{"name": "f"}]
    assert write(HELLO, tokenize=False, tools=tools) == '[{"name": "f"}]'
    assert write(HELLO, tokenize=False) == render(CHATML, add_generation_prompt=False)
    assert write(HELLO, tokenize=False, tools=tools, chat_template="asked for") == "asked for"


def test_a_conversation_that_cannot_fit_is_refused_before_it_is_encoded(llm):
    with pytest.raises(RequestError, match="characters; wanted at most 63 tokens of at most 24 characters"):
        llm.chat([{"role": "user", "content": "x" * 100_000}])
