"""Tool calls and reasoning in the text of a chat format: how they are asked for, and how they are found. No torch.

    request: tools, tool_choice, messages          answer: text, piece by piece
    definitions, messages, constraint              ToolFormat.parser() -> feed, finish -> events

`formats.py` has one `ToolFormat` for each chat format, and finds the one of a chat template.
"""

FORMAT_NAMES = ("hermes", "llama3", "mistral", "mistral-args", "harmony", "gemma4", "gemma", "none")
"""The formats, in the order in which documents list them. Here, because the command line imports nothing heavier."""
