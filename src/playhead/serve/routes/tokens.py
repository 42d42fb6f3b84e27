"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from playhead.engine.conversations import ChatOptions
from playhead.errors import RequestError, shown
from playhead.serve.call import Answer, Call
from playhead.serve.decode import BodyError, decode
from playhead.serve.protocol.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from playhead.serve.routes.turn import check_template
from playhead.serve.service import Service, answer
from playhead.serve.tools.definitions import tool_request
from playhead.serve.validate import message_tables, template_variables

CHARS_PER_TOKEN = 16
LEAST_CHARS = 1 << 16


async def tokenize(service: Service, call: Call) -> Answer:
    """The handler of /tokenize. A text may be longer than the context: it is counted, not answered."""
    request = decode(call.body, TokenizeRequest)
    service.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        found = "neither" if request.prompt is None else "both"
        raise BodyError("prompt", f"{found} of prompt and messages", "one of them", "Send one.")
    reader = service.backend.reader
    text, adds_special = request.prompt, request.add_special_tokens is not False
    if text is None:
        check_template(service, "messages")
        tools = tool_request(msgspec.to_builtins(request.tools))
        messages = service.format.messages(message_tables(request.messages or (), service.rules(call)), tools)
        options = ChatOptions(
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=service.format.template_tools(tools),
            chat_template_kwargs=template_variables(request.chat_template_kwargs, None),
        )
        text = await asyncio.to_thread(reader.chat_text, messages, options)
        adds_special = request.add_special_tokens is True
    check_chars(text, service.backend.facts.max_model_len)
    encode = partial(reader.tokenizer.encode, text, add_special_tokens=adds_special)
    ids = await asyncio.to_thread(encode)
    return answer(
        TokenizeAnswer(
            count=len(ids),
            max_model_len=service.backend.facts.max_model_len,
            tokens=ids,
            token_strs=[reader.tokenizer.token_text(one) or "" for one in ids] if request.return_token_strs else None,
        )
    )


def check_chars(text: str, max_model_len: int) -> None:
    """Refuse a text far beyond the context. Encoding takes 200 bytes of memory for each character."""
    most = max(LEAST_CHARS, CHARS_PER_TOKEN * max_model_len)
    if len(text) > most:
        raise RequestError("prompt", f"{len(text)} characters", f"at most {most}", "Send it in parts.")


async def detokenize(service: Service, call: Call) -> Answer:
    """The handler of /detokenize."""
    request = decode(call.body, DetokenizeRequest)
    service.check_model(request.model)
    reader = service.backend.reader
    if request.tokens and max(request.tokens) >= reader.vocab_size:
        outside = next(one for one in request.tokens if one >= reader.vocab_size)
        wanted = f"ids in [0, {reader.vocab_size})"
        raise RequestError("tokens", f"token id {shown(outside)}", wanted, "Check the tokenizer.")
    decoded = partial(reader.tokenizer.decode, request.tokens, skip_special_tokens=False)
    return answer(DetokenizeAnswer(prompt=await asyncio.to_thread(decoded)))
