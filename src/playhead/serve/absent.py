"""Paths of OpenAI's, vLLM's and SGLang's servers that this one does not have, each with the reason. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from playhead.errors import NO_POOLING

TEXT_ALONE = "Playhead reads and writes text: it has no images and no audio."
NOT_STORED = "Playhead stores nothing: every request is answered by itself."

ABSENT_PATHS: Mapping[str, str] = {
    **dict.fromkeys(("/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank"), NO_POOLING),
    **dict.fromkeys(("/score", "/rerank", "/pooling", "/classify", "/encode"), NO_POOLING),
    **dict.fromkeys(("/v1/images", "/v1/audio", "/v1/videos"), TEXT_ALONE),
    **dict.fromkeys(("/v1/files", "/v1/batches", "/v1/assistants", "/v1/threads"), NOT_STORED),
    **dict.fromkeys(("/v1/responses", "/v1/conversations", "/v1/vector_stores"), NOT_STORED),
    "/v1/fine_tuning": "Playhead trains nothing.",
    "/v1/moderations": "Playhead has no moderation.",
    "/v1/messages": "Playhead speaks OpenAI's API: use /v1/chat/completions.",
    "/v1/load_lora_adapter": "Playhead has no LoRA adapters: merge the adapter into the weights first.",
    "/generate": "Playhead speaks OpenAI's API: use /v1/completions.",
}


def why_absent(path: str) -> str | None:
    """Why there is nothing at this path or below it. None for a path that none of those servers has."""
    return next((why for begin, why in ABSENT_PATHS.items() if f"{path}/".startswith(f"{begin}/")), None)
