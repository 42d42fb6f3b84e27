"""Chat templates render what they should and can do nothing else."""

from __future__ import annotations

from datetime import datetime

import pytest

from playhead.models.errors import ChatTemplateError
from playhead.models.text.chat import ChatTemplate

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hi <b>&</b>"}]


def render(source, messages=HELLO, **kwargs):
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages, **kwargs)


def test_messages_become_a_prompt():
    assert render(CHATML) == "<|im_start|>user\nHi <b>&</b><|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi <b>&</b><|im_end|>\n"


def test_tokens_switches_and_tools_reach_the_template():
    source = "{{ bos_token }}{{ enable_thinking }}{{ tools | tojson }}{{ eos_token }}"
    assert render(source, tools=[{"name": "f<"}], enable_thinking=False) == '<s>False[{"name": "f<"}]</s>'


def test_the_clock_is_the_callers():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", bos=None, eos=None, now=lambda: datetime(2026, 11, 15))
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
        ChatTemplate(source, bos=None, eos=None)
