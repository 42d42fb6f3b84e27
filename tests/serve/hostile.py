"""Hostile requests, made from lists and from a seed: every run has the same ones. Each is 4xx, or cut off.

framing    what could be read in two ways, on every route
heads      targets, hosts, ids, types, sizes, methods
bodies     JSON that is no JSON, or too deep, or too much, or says a key twice
fields     values of the wrong type, outside of their range, or of nobody's vocabulary
keys       the locked server without its key, by every trick with a path or a header
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.serve.test_guard import SMUGGLED

ROUTES = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
BASE = {
    "/v1/completions": {"prompt": "The whale", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    "/tokenize": {"prompt": "The whale"},
    "/detokenize": {"tokens": [5, 6]},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Bytes for one connection. `is_locked`: for the server that wants a key. `hangs_up`: no more bytes come."""

    name: str
    data: bytes
    is_locked: bool = False
    hangs_up: bool = False


def post(path: str, body: bytes, *more: bytes, kind: bytes = b"application/json") -> bytes:
    """A request that is well framed, whatever its body is."""
    lines = [b"POST " + path.encode() + b" HTTP/1.1", b"Host: localhost", b"Content-Type: " + kind, *more]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def framing() -> Iterator[Case]:
    for name, data in SMUGGLED.items():
        for path in ROUTES:
            yield Case(name=f"{name} on {path}", data=data.replace(b"/echo", path.encode()))


def heads() -> Iterator[Case]:
    good = json.dumps(BASE["/v1/completions"]).encode()
    get = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    for path in (
        *(b"/v1", b"/v1/", b"/v1/completions/", b"//v1/completions", b"/v1//completions", b"/v1/./completions"),
        *(b"/v1/../v1/completions", b"/%76%31/completions", b"/v1%2fcompletions", b"/v1/completions%00", b"/V1/MODELS"),
        *(b"/v1/completions;x", b"/.env", b"/etc/passwd", b"/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd"),
        *(
            b"/pages/../app.py",
            b"/pages/%2e%2e/app.py",
            b"/pages/",
            b"/pages/none.js",
            b"/graphs/",
            b"/health/",
            b"/..",
        ),
        *(
            b"/v1/models/none",
            b"/v1/models/..",
            b"/v1/models/%2e%2e/%2e%2e/health",
            b"/v1/models/%00",
            b"/v1/models/%ff",
        ),
        *(b"/" + b"a/" * 500, b"/" + b"%41" * 500, b"/\\", b"/v1\\models", b"/v1/models?" + b"a" * 70_000),
    ):
        yield Case(name=f"target {path[:40]!r}", data=get % (path, b""))
    for host in (
        b"evil.example",
        b"a b",
        b"",
        b"localhost:99999999",
        b"[::1",
        b"@localhost",
        b"localhost#",
        b"\xff",
        b"a," * 9,
    ):
        data = post("/v1/completions", good).replace(b"Host: localhost", b"Host: " + host)
        yield Case(name=f"host {host!r}", data=data)
    for id_ in (b"a b", b"", b"\xff\xfe", b"x" * 129, b"\t", b"a\x01b", b"a\x7fb", b"\xe2\x80\xae"):
        yield Case(name=f"id {id_!r}"[:40], data=post("/v1/completions", good, b"X-Request-Id: " + id_))


def kinds() -> Iterator[Case]:
    good = json.dumps(BASE["/v1/completions"]).encode()
    for kind in (
        *(
            b"text/plain",
            b"",
            b"application/x-www-form-urlencoded",
            b"multipart/form-data; boundary=x",
            b"application/xml",
        ),
        *(
            b"application/json; charset=utf-16",
            b"application/json5",
            b"text/json",
            b"application/json, text/plain",
            b"*/*",
        ),
    ):
        for path in ROUTES:
            yield Case(name=f"type {kind!r} on {path}", data=post(path, json.dumps(BASE[path]).encode(), kind=kind))
    for method in (b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"GET", b"PROPFIND", b"LOCK"):
        for path in ROUTES:
            yield Case(name=f"{method!r} on {path}", data=post(path, b"").replace(b"POST", method, 1))
    for path in ROUTES:
        yield Case(name=f"too large on {path}", data=post(path, b"").replace(b"Length: 0", b"Length: 8388609"))
        yield Case(name=f"many headers on {path}", data=post(path, good, *(b"A: %d" % i for i in range(100))))
        yield Case(name=f"long header on {path}", data=post(path, good, b"A: " + b"a" * 66_000))


def bodies() -> Iterator[Case]:
    deep = 70
    for name, body in {
        "nothing": b"",
        "a space": b" ",
        "no JSON": b"hello",
        "half": b'{"prompt": "a"',
        "two": b'{"prompt": "a"}{"prompt": "a"}',
        "a comma": b'{"prompt": "a",}',
        "single quotes": b"{'prompt': 'a'}",
        "a comment": b'{"prompt": "a"} // a',
        "a list": b"[]",
        "a number": b"1",
        "null": b"null",
        "a string": b'"a"',
        "NaN": b'{"prompt": "a", "temperature": NaN}',
        "infinity": b'{"prompt": "a", "temperature": Infinity}',
        "a huge exponent": b'{"prompt": "a", "temperature": 1e999}',
        "a key twice": b'{"prompt": "a", "prompt": "b"}',
        "a key twice below": b'{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": false}}',
        "a key twice, escaped": b'{"prompt": "a", "pr\\u006fmpt": "b"}',
        "bad UTF-8": b'{"prompt": "\xff\xfe"}',
        "half a character": b'{"prompt": "\xe2\x82"}',
        "overlong UTF-8": b'{"prompt": "\xc0\xaf"}',
        "a surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
        "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
        "a byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
        "a control character": b'{"prompt": "a\x01"}',
        "a bad escape": b'{"prompt": "\\x41"}',
        "deep lists": b'{"prompt": ' + b"[" * deep + b"]" * deep + b"}",
        "deep objects": b'{"a":' * deep + b"1" + b"}" * deep,
        "unclosed lists": b"[" * 100_000,
        "unclosed objects": b'{"a":' * 50_000,
        "a long number": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        "a long fraction": b'{"prompt": "a", "seed": 1.' + b"9" * 5000 + b"}",
        "many keys": b"{" + b",".join(b'"k%d": 1' % i for i in range(5000)) + b"}",
        "a long key": b'{"' + b"k" * 100_000 + b'": 1}',
        "a NUL": b'{"prompt": "a"}\0',
    }.items():
        for path in ROUTES:
            yield Case(name=f"{name} to {path}", data=post(path, body))


WRONG: dict[str, list[Any]] = {
    "max_tokens": [0, -1, 1.5, "1", True, [], {}, 10**6, 2**63, 10**40],
    "temperature": [-1, "0", True, [], {}, 1e308, 10**40],
    "top_p": [0, -0.1, 1.1, "1", True, []],
    "top_k": [-2, 1.5, "1", True, 10**40],
    "min_p": [-0.1, 1.1, "0", True],
    "n": [0, -1, 17, 1.0, "1", True, 10**40],
    "seed": [1.5, "1", True, 2**70, []],
    "stop": [1, True, [1], ["a"] * 5, "a" * 257, ["a" * 257], {}, [None], [""]],
    "logit_bias": [1, [], "x", {"a": 1}, {"-1": 1}, {"999999": 1}, {"1": 101}, {"1": "1"}, {"1": None}, {"1": True}],
    "presence_penalty": [-2.1, 2.1, "0", True],
    "frequency_penalty": [-2.1, 2.1, "0", True],
    "min_tokens": [-1, 1.5, "1", True, 10**6],
    "stream": [0, 1, "true", [], {}],
    "stream_options": [1, [], {"include_usage": 1}, {"unknown": True}],
    "ignore_eos": [0, "true"],
    "priority": [1.5, "1", 10**40],
    "user": [1, [], {}],
    "cache_salt": [1, []],
    "response_format": [1, "json", {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 1}],
    "model": [1, [], "another-model", "../../etc/passwd"],
}
PROMPTS: list[Any] = [
    *(
        None,
        1,
        1.5,
        True,
        {},
        [],
        [[]],
        [""] * 65,
        [1.5],
        [True],
        [None],
        [[True]],
        [[1.5]],
        ["a", 1],
        [[1], "a", None],
    ),
    *(
        [-1],
        [4096],
        [2**31],
        [2**63],
        [2**64],
        [10**40],
        [[-1]],
        [[4096]],
        ["a", [4096]],
        [1] * 300,
        ["a " * 400],
        "a " * 5000,
    ),
    *({"text": "a"}, [{"text": "a"}], [[[1]]], [["a"]]),
]
MESSAGES: list[Any] = [
    *(
        None,
        1,
        "a",
        {},
        [],
        [1],
        [None],
        [[]],
        [{}],
        [{"role": "user"}],
        [{"content": "a"}],
        [{"role": 1, "content": "a"}],
    ),
    *(
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [1]}],
        [{"role": "user", "content": [{"type": "image"}]}],
    ),
    *(
        [{"role": "nobody", "content": "a"}],
        [{"role": "user", "content": "a", "unknown": 1}],
        [{"role": "user", "content": {}}],
    ),
    *([{"role": "user", "content": "a " * 5000}], [{"role": "user", "content": [{"type": "text", "text": 1}]}]),
]
TOKENS: list[Any] = [None, 1, "a", {}, [1.5], [True], ["a"], [-1], [4096], [10**40], [[1]], [None]]


def fields() -> Iterator[Case]:
    for path in ROUTES[:2]:
        for name, values in WRONG.items():
            for value in values:
                body = json.dumps({**BASE[path], name: value}).encode()
                yield Case(name=f"{name} {value!r:.20} to {path}", data=post(path, body))
    for path, name, values in (
        ("/v1/completions", "prompt", PROMPTS),
        ("/tokenize", "prompt", [1, 1.5, True, {}, [], [1], ["a"]]),
        ("/v1/chat/completions", "messages", MESSAGES),
        ("/detokenize", "tokens", TOKENS),
    ):
        for value in values:
            yield Case(
                name=f"{name} {value!r:.20} to {path}",
                data=post(path, json.dumps({**BASE[path], name: value}).encode()),
            )
    for value in (21, -1, 1.5, "1", True):
        yield Case(
            name=f"logprobs {value!r}",
            data=post(ROUTES[0], json.dumps({**BASE[ROUTES[0]], "logprobs": value}).encode()),
        )
        more = {"logprobs": True, "top_logprobs": value}
        yield Case(
            name=f"top_logprobs {value!r}", data=post(ROUTES[1], json.dumps({**BASE[ROUTES[1]], **more}).encode())
        )
    bias = {str(i): 1 for i in range(301)}
    yield Case(name="301 biases", data=post(ROUTES[0], json.dumps({**BASE[ROUTES[0]], "logit_bias": bias}).encode()))


def keys() -> Iterator[Case]:
    """The locked server. None of these has its key."""
    for path in ROUTES:
        for header in (
            *(
                b"Authorization:",
                b"Authorization: Bearer",
                b"Authorization: Bearer alice",
                b"Authorization: Basic YTpi",
            ),
            *(b"authorization: bearer alice-0123456789abcde", b"X-Api-Key: alice-0123456789abcdef", b"Api-Key: a"),
            *(
                b"Cookie: Authorization=Bearer alice-0123456789abcdef",
                b"X-Forwarded-For: 127.0.0.1",
                b"X-Original-URL: /health",
            ),
            *(
                b"Proxy-Authorization: Bearer alice-0123456789abcdef",
                b"X-Rewrite-Url: /health",
                b"X-Forwarded-Prefix: /health",
            ),
        ):
            data = post(path, json.dumps(BASE[path]).encode(), header)
            yield Case(name=f"{header!r} on {path}", data=data, is_locked=True)
    for path in (
        *(
            "/health/../v1/models",
            "/health/%2e%2e/v1/models",
            "//v1/models",
            "/v1/models",
            "http://localhost/v1/models",
        ),
        *(
            "http://x/health/../v1/models",
            "/health;/v1/models",
            "/ready/../metrics",
            "/metrics",
            "/version",
            "/openapi.json",
        ),
        *("/v1/models?path=/health", "/v1/models#/health", "/graphs/data/0", "/V1/models", "/v1/models/embedded"),
    ):
        data = b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        yield Case(name=f"no key for {path}", data=data, is_locked=True)


def scrambled(seed: int, count: int) -> Iterator[Case]:
    """Well-formed requests with a few bytes of their heads exchanged, and no longer the same."""
    draw = random.Random(seed)
    for i in range(count):
        path = draw.choice(ROUTES)
        data = bytearray(post(path, json.dumps(BASE[path]).encode()))
        end = data.index(b"\r\n\r\n")
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(end)] = draw.choice([0, 1, 9, 10, 13, 32, 37, 58, 127, 128, 255])
        yield Case(name=f"scrambled {i}", data=bytes(data), hangs_up=True)


def all_cases() -> list[Case]:
    made = [*framing(), *heads(), *kinds(), *bodies(), *fields(), *keys(), *scrambled(0, 300)]
    names: dict[str, int] = {}
    for case in made:
        names[case.name] = names.get(case.name, 0) + 1
    assert len(made) >= 1000
    return [replace(case, name=f"{case.name} #{i}") if names[case.name] > 1 else case for i, case in enumerate(made)]
