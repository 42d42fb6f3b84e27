"""Hostile tokenizers and chat templates."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from playhead.testing import hostile_base as base
from playhead.testing.hostile_base import Content, Files, Sparse
from playhead.testing.hostile_files import Cases, case, json_cases
from playhead.testing.hostile_run import HostileCase


def tokenizer_cases(seeds: range) -> Cases:
    """tokenizer.json: what it may say without harm, what makes the library panic, what grows."""
    kind = "tokenizer"
    yield case(kind, "sound", base.base_files, is_harmless=True)
    yield from json_cases(kind, "tokenizer.json", seeds)
    for name, change in HARMLESS.items():
        yield case(kind, name, partial(tokenizer_with, change), is_harmless=True)
    for name, change in (hostile_pipelines() | hostile_models()).items():
        yield case(kind, name, partial(tokenizer_with, change))


def tokenizer_with(change: Mapping[str, Any]) -> Files:
    """The sound tokenizer with other parts; keys with a dot are inside the model."""
    table = json.loads(base.tokenizer_json())
    for key, value in change.items():
        inside = table["model"] if key.startswith("model.") else table
        inside[key.removeprefix("model.")] = value
    return base.base_files() | {"tokenizer.json": base.dumped(table)}


HARMLESS: Mapping[str, Mapping[str, Any]] = {
    "saved truncation": {
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    },
    "saved padding": {
        "padding": {
            "strategy": {"Fixed": 12},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "!",
        }
    },
    "dropout": {"model.dropout": 0.9},
}


def split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: Mapping[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def hostile_pipelines() -> dict[str, Mapping[str, Any]]:
    """What is done to a text before it is cut into tokens."""
    charsmap = base64.b64encode((1000).to_bytes(4, "little") + b"\xff" * 1000 + b"abc\0").decode()
    return {
        "pattern that never ends": {"pre_tokenizer": split(r"(\w+)+$")},
        "pattern of many steps": {"pre_tokenizer": split(r"(.|..)+$")},
        "pattern that repeats": {"pre_tokenizer": split("(?:(?:a{0,1000}){0,1000}){0,1000}")},
        "pattern that is none": {"pre_tokenizer": split("(")},
        "long pattern": {"pre_tokenizer": split("(" * 50_000 + ")" * 50_000)},
        "alternatives": {"pre_tokenizer": split("|".join(["a?"] * 50_000))},
        "parts of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        "charsmap of nothing": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        "charsmap out of bounds": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}},
        "a megabyte for a letter": {"normalizer": replace({"Regex": "."}, "z" * 1_000_000)},
        "tens of tens": {
            "normalizer": {"type": "Sequence", "normalizers": [replace({"Regex": "."}, "z" * 10) for _ in range(8)]}
        },
        "replace nothing": {"normalizer": replace({"String": ""}, "zzz")},
        "prepend a megabyte": {"normalizer": {"type": "Prepend", "prepend": "z" * 1_000_000}},
        "a thousand normalizers": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 1000}},
    }


def hostile_models() -> dict[str, Mapping[str, Any]]:
    """What is around a text, the vocabulary, the way back."""
    added = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False, "special": True}
    return {
        "unknown special token": {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<zz>", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
        "a million ids around a text": {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}],
                "pair": [],
                "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1] * 500_000, "tokens": ["a"] * 500_000}},
            }
        },
        "stride over length": {
            "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 9}
        },
        "padding of a billion": {
            "padding": {**HARMLESS["saved padding"]["padding"], "strategy": {"Fixed": 10**9}},
        },
        "dropout over one": {"model.dropout": 7.0},
        "prefix out of range": {"model.continuing_subword_prefix": "日本"},
        "merge of nothing": {"model.merges": [["zz", "yy"]]},
        "ids twice": {"model.vocab": {"a": 0, "b": 0}, "model.merges": []},
        "ids of 32 bits": {"model.vocab": {"a": 2**32 - 1}, "model.merges": []},
        "unknown unknown": {"model.unk_token": "nope", "model.vocab": {"a": 0}, "model.merges": []},
        "no unknown": {"model.vocab": {}, "model.merges": []},
        "word pieces": {
            "model": {
                "type": "WordPiece",
                "vocab": {"a": 0},
                "unk_token": "zz",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
            }
        },
        "unigram without unknown": {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}},
        "unigram of nothing": {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0]]}},
        "added empty": {"added_tokens": [{"id": 300, "content": "", **added}]},
        "added far out": {"added_tokens": [{"id": 2**32 - 1, "content": "hello", **added}]},
        "added a megabyte": {"added_tokens": [{"id": 300, "content": "x" * 1_000_000, **added}]},
        "decoder that strips the end": {"decoder": {"type": "Strip", "content": " ", "start": 0, "stop": 9}},
        "no decoder": {"decoder": None},
        "decoder of a pattern": {"decoder": replace({"Regex": "(a+)+$"}, "x")},
        "decoder of words": {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
    }


GROWING = (
    "{{ '%999999999d' % 1 }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ 'a'.encode() * 3000000000 }}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**10**8 }}",
    "{{ 'a'.center(999999999) }}",
    "{{ 'a' | center(999999999) }}",
    "{{ ('a' * 8000000).replace('a', 'a' * 1000) }}",
    "{{ ('a\n' * 4000000) | indent(999999) }}",
    "{{ ('a' * 1000000).join(range(90000) | map('string')) }}",
    "{{ [1] | batch(999999999, 'x') | list }}",
    "{{ [1, 2] | slice(999999999) | list }}",
    "{{ lipsum(n=9999999) }}",
    "{{ messages | tojson(indent=999999999) }}",
    "{{ 3 | round(-999999999) }}",
    "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=3) %}{% for i in range(64) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in messages recursive %}{{ loop([a]) }}{% endfor %}",
    "{% for a in range(10**18) %}{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "{{ " + "-" * 90000 + "1 }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{{ raise_exception('no') }}",
    "{{ messages[9].content.x.y }}",
    "{{ 1 / 0 }}",
    "{{ '\ud800' }}",
    "{# " * 1000,
    "{% include '/etc/passwd' %}",
)


def template_cases(seeds: range) -> Iterator[HostileCase]:
    """Templates that take too much or raise, and the sound one with pieces moved."""
    yield case("template", "sound", base.base_files, chats=True, is_harmless=True)
    for source in GROWING:
        yield case("template", f"{source:.60}", partial(with_template, source), chats=True)
    for name, content in template_files().items():
        files = base.base_files() | {"chat_template.jinja": content}
        yield case("template", name, partial(dict, files), chats=True)
    for seed in seeds:
        yield case("template", f"seed {seed}", partial(_mixed, seed), chats=True)


def template_files() -> dict[str, Content]:
    """A template in its own file, which no JSON parser has seen."""
    return {
        "an empty file": b"",
        "a file of zeros": bytes(100),
        "a file that is not UTF-8": b"{{ \xff }}",
        "a file in UTF-16": base.TEMPLATE.encode("utf-16"),
        "a file of half a character": base.TEMPLATE.encode() + "日".encode()[:2],
        "a file of a terabyte": Sparse(head=base.TEMPLATE.encode(), num_bytes=1 << 40),
        "a file of a megabyte": b"x" * (1 << 20),
    }


def with_template(source: str) -> Files:
    config = {**base.TOKENIZER_CONFIG, "chat_template": source}
    return base.base_files() | {"tokenizer_config.json": base.dumped(config)}


def _mixed(seed: int) -> Files:
    """Pieces of the sound template and of hostile ones in another order."""
    rng = random.Random(seed)
    source = base.TEMPLATE
    for _ in range(rng.randrange(1, 5)):
        start, size = rng.randrange(len(source)), rng.randrange(1, 20)
        put = rng.choice(["", source[start : start + size], rng.choice(GROWING)[:80], "{%", "%}", "{{", "}}", "|", "."])
        source = source[:start] + put + source[start + size * rng.randrange(2) :]
    return with_template(source)
