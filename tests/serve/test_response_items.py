"""The items of a response's input as messages of a conversation."""

from __future__ import annotations

from playhead.request_limits import RequestLimits
from playhead.sampling_params import SamplingParams
from playhead.serve.decode import as_struct
from playhead.serve.protocol.responses import ResponsesRequest
from playhead.serve.validate import Rules, validate_responses

RULES = Rules(defaults=SamplingParams(), limits=RequestLimits())


def messages_of(items: list[dict]) -> list[dict]:
    return validate_responses(as_struct({"input": items}, ResponsesRequest), RULES).messages


def test_calls_belong_to_the_message_that_the_model_wrote_before_them():
    """Two messages of the assistant in a row are no answer of a model, and some templates refuse them."""
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    calls = [{"type": "function_call", "call_id": name, "name": "weather", "arguments": "{}"} for name in "ab"]
    result = {"type": "function_call_output", "call_id": "a", "output": "sunny"}
    messages = messages_of([{"role": "user", "content": "?"}, thought, said, *calls, result, calls[0]])
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]
    assert (messages[1]["content"], messages[1]["reasoning_content"]) == ("I look.", "hm")
    assert [[call["id"] for call in one.get("tool_calls", ())] for one in messages] == [[], ["a", "b"], [], ["a"]]
