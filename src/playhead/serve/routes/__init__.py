"""The routes of the API, each a handler that takes a `Call` and gives an `Answer` or an `EventStream`. No torch."""

from __future__ import annotations

import asyncio
from functools import lru_cache

from playhead import __version__
from playhead.request_limits import RequestLimits
from playhead.serve.call import Answer, Call
from playhead.serve.openapi import document
from playhead.serve.protocol.chat import ChatAnswer, ChatChunk, ChatRequest
from playhead.serve.protocol.completions import CompletionAnswer, CompletionRequest
from playhead.serve.protocol.models import ModelCard, ModelList
from playhead.serve.protocol.responses import ResponsesAnswer, ResponsesRequest, StreamEvent
from playhead.serve.protocol.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from playhead.serve.routes.chat import answer_chat
from playhead.serve.routes.completions import complete
from playhead.serve.routes.models import list_models, one_model
from playhead.serve.routes.responses import create_response
from playhead.serve.routes.tokens import detokenize, tokenize
from playhead.serve.service import ENCODER, GENERATES, READS, Route, Service


async def openapi(service: Service, call: Call) -> Answer:
    """The handler of /openapi.json."""
    # Made once, and beside the event loop: it takes tens of milliseconds, for which no token would be sent.
    return Answer(body=await asyncio.to_thread(openapi_json, service.limits, service.backend.facts.vocab_size))


@lru_cache(maxsize=1)
def openapi_json(limits: RequestLimits, vocab_size: int) -> bytes:
    """The document of the routes under these limits."""
    return ENCODER.encode(document(ROUTES, version=__version__, limits=limits, vocab_size=vocab_size))


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=answer_chat,
        summary="Answer a conversation",
        request=ChatRequest,
        answer=ChatAnswer,
        chunk=ChatChunk,
        statuses=GENERATES,
        names={"prompt": "messages"},
    ),
    Route(
        method="POST",
        path="/v1/completions",
        handler=complete,
        summary="Go on with prompts",
        request=CompletionRequest,
        answer=CompletionAnswer,
        chunk=CompletionAnswer,
        statuses=GENERATES,
    ),
    Route(
        method="POST",
        path="/v1/responses",
        handler=create_response,
        summary="Answer a text or a conversation",
        request=ResponsesRequest,
        answer=ResponsesAnswer,
        chunk=StreamEvent,
        statuses=GENERATES,
        names={"prompt": "input"},
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
        names={"prompt": "tokens"},
    ),
    Route(
        method="GET",
        path="/openapi.json",
        handler=openapi,
        summary="This document",
        statuses=READS,
        content_type="application/json",
    ),
)
"""Every route of the API. Pages, health and metrics are added by the server."""
