"""LangChain's client of OpenAI, pointed at Playhead: `pip install langchain-openai`, then run this file."""

from __future__ import annotations

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

# `model` may be any name that the server's --served-model-name or GET /v1/models says.
chat = ChatOpenAI(
    base_url=f"{os.environ.get('PLAYHEAD_URL', 'http://127.0.0.1:8000')}/v1",
    api_key=os.environ.get("PLAYHEAD_API_KEY", "none"),
    model=os.environ.get("PLAYHEAD_MODEL", "embedded"),
    max_tokens=32,
)
print(chat.invoke("Who is there?").content)
for chunk in chat.stream("What news?"):
    print(chunk.content, end="", flush=True)
print()


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


# tool_choice="required" works with every model. "auto" needs a chat template that knows tools.
print(chat.bind_tools([weather], tool_choice="required").invoke("Is it sunny in Rome?").tool_calls)
