"""Requests made from /openapi.json, good and bad: no 5xx, no status that the document does not declare, no hang.

A few examples per operation run in the suite; PLAYHEAD_SERVE=full tries 200 of each kind.
"""

from __future__ import annotations

import os

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from playhead.serve.openapi import OTHER_PATHS
from playhead.serve.routes import ROUTES

NUM_EXAMPLES = 200 if os.environ.get("PLAYHEAD_SERVE") == "full" else 4
PATIENCE_S = 120  # decides nothing but that a request hangs
READ_ONLY = [("GET", route.path, "positive") for route in ROUTES if route.method == "GET"]
OPERATIONS = [
    *READ_ONLY,
    *(("GET", other.path, "positive") for other in OTHER_PATHS),
    *((route.method, route.path, mode) for route in ROUTES if route.request for mode in ("positive", "negative")),
]


@pytest.fixture(scope="module")
def schema(server):
    import schemathesis  # takes a second, and most tests here do without

    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_no_request_breaks_the_server_or_gets_an_undeclared_status(schema, server, method, path, mode):
    from schemathesis import GenerationMode

    operation = schema[path][method]
    declared = {int(status) for status in operation.definition.raw["responses"]}
    found: set[int] = set()
    with requests.Session() as session:

        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
        def run(case):
            response = case.call(base_url=server.url, session=session, timeout=PATIENCE_S)
            found.add(response.status_code)
            assert response.status_code < 500
            assert response.status_code in declared

        run()
    assert found
