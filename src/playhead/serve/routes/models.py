"""GET /v1/models and /v1/models/{model}: what is served."""

from __future__ import annotations

from playhead.serve.call import Answer, Call
from playhead.serve.protocol.models import ModelCard, ModelList
from playhead.serve.service import Service, answer


async def list_models(service: Service, call: Call) -> Answer:
    """The handler of the list."""
    return answer(ModelList(data=[card(service)]))


async def one_model(service: Service, call: Call) -> Answer:
    """The handler of one model."""
    service.check_model(call.path_value)
    return answer(card(service))


def card(service: Service) -> ModelCard:
    facts = service.backend.facts
    return ModelCard(id=facts.name, created=service.created_s, max_model_len=facts.max_model_len)
