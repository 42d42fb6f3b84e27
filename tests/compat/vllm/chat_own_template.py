"""A chat template of one's own, with variables and tools."""

from playhead import LLM, SamplingParams

TEMPLATE = """{% for m in messages %}[{{ m['role'] | upper }}] {{ m['content'] }}
{% endfor %}{% if tools %}[TOOLS] {{ tools | map(attribute='name') | join(', ') }}
{% endif %}{% if enable_thinking %}[THINK]
{% endif %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}"""
TOOLS = [{"name": "get_weather", "parameters": {"city": "string"}}]


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256)
    outputs = llm.chat(
        [{"role": "user", "content": "Is there wind at Nantucket?"}],
        sampling_params=SamplingParams(temperature=0, max_tokens=4),
        chat_template=TEMPLATE,
        tools=TOOLS,
        chat_template_kwargs={"enable_thinking": True},
    )
    assert outputs[0].prompt_token_ids is not None
    prompt = llm.get_tokenizer().decode(outputs[0].prompt_token_ids)
    print(prompt)
    assert prompt == "[USER] Is there wind at Nantucket?\n[TOOLS] get_weather\n[THINK]\n[ASSISTANT]"


if __name__ == "__main__":
    main("embedded")
