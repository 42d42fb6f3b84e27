"""The routes of the API, each a handler that takes a `Call` and gives an `Answer` or an `EventStream`. No torch."""

from __future__ import annotations

from playhead.serve.protocol.chat import ChatAnswer, ChatChunk, ChatRequest
from playhead.serve.protocol.completions import CompletionAnswer, CompletionRequest
from playhead.serve.protocol.models import ModelCard, ModelList
from playhead.serve.protocol.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from playhead.serve.routes.chat import chat
from playhead.serve.routes.completions import completions
from playhead.serve.routes.models import list_models, one_model
from playhead.serve.routes.tokens import detokenize, tokenize
from playhead.serve.service import GENERATES, READS, Route

ROUTES = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=chat,
        summary="Answer a conversation",
        request=ChatRequest,
        answer=ChatAnswer,
        chunk=ChatChunk,
        statuses=GENERATES,
        prompt_param="messages",
    ),
    Route(
        method="POST",
        path="/v1/completions",
        handler=completions,
        summary="Go on with prompts",
        request=CompletionRequest,
        answer=CompletionAnswer,
        chunk=CompletionAnswer,
        statuses=GENERATES,
    ),
    Route(
        method="GET",
        path="/v1/models",
        handler=list_models,
        summary="The models that are served",
        answer=ModelList,
        statuses=READS,
    ),
    Route(
        method="GET",
        path="/v1/models/{model}",
        handler=one_model,
        summary="One model that is served",
        answer=ModelCard,
        statuses=(*READS, 404),
    ),
    Route(
        method="POST",
        path="/tokenize",
        handler=tokenize,
        summary="The tokens of a text or of a conversation",
        request=TokenizeRequest,
        answer=TokenizeAnswer,
        statuses=GENERATES,
    ),
    Route(
        method="POST",
        path="/detokenize",
        handler=detokenize,
        summary="The text of tokens",
        request=DetokenizeRequest,
        answer=DetokenizeAnswer,
        statuses=GENERATES,
        prompt_param="tokens",
    ),
)
"""Every route of the API. Pages, health and metrics are added by the server."""
