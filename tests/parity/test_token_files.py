"""Ids, texts and chat prompts of drawn tokenizer files equal transformers'.

A draw decides where tokens are named, which of them tokenizer.json has as ordinary ones, which files list added tokens
and what goes around a text.
"""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, processors

from playhead.models.text.chat import ChatTemplate
from playhead.models.text.template_worker import TemplateWorker
from playhead.models.text.tokenizer import tokenizer_from_directory
from tests.parity.edited_configs import quiet_transformers
from tests.unit.models.text.vocabularies import byte_fallback, byte_level

NUM_DRAWS = 60
SPECIAL = ("<s>", "</s>", "<pad>", "<|im_end|>")
TEXTS = ("hi  é 日", "<s>already", "a<|im_end|> b</s>", "x <tool>y <new> z", "  <pad>hi")
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "image_token")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}" + "".join(f"|{{{{ {name} }}}}" for name in NAMES)
MESSAGES = [{"role": "user", "content": "hi<|im_end|>"}]


@pytest.fixture(scope="module")
def worker():
    worker = TemplateWorker()
    yield worker
    worker.close()


def drawn_backend(rng: random.Random) -> Tokenizer:
    """A vocabulary with the special tokens, of which some are ordinary, and perhaps something around a text."""
    backend = rng.choice([byte_level, lambda: byte_fallback(strips_first_space=rng.random() < 0.5)])()
    backend.add_special_tokens([AddedToken(text, special=True, lstrip=rng.random() < 0.2) for text in SPECIAL])
    state = json.loads(backend.to_str())
    ordinary = {token["content"]: token["id"] for token in state["added_tokens"] if rng.random() < 0.3}
    state["model"]["vocab"] |= ordinary
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in ordinary]
    backend = Tokenizer.from_str(json.dumps(state))
    if rng.random() < 0.5:
        bos = ("<s>", backend.token_to_id("<s>"))
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[bos])
    return backend


def write_draw(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    backend = drawn_backend(rng)
    next_id, flags = backend.get_vocab_size(), {"lstrip": False, "rstrip": False, "single_word": False}
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    config |= {key: rng.random() < 0.5 for key in ("add_bos_token", "add_eos_token") if rng.random() < 0.3}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if rng.random() < 0.2:
            config[key] = [rng.choice(SPECIAL)]
    files = {"config": {"model_type": "llama"}, "tokenizer_config": config}
    for name in NAMES:
        table = config if rng.random() < 0.5 else files.setdefault("special_tokens_map", {})
        if rng.random() < 0.6:
            text = rng.choice(SPECIAL)
            mark = {"__type": "AddedToken"} if table is config else {}
            table[name] = rng.choice([text, {"content": text, "normalized": False, **flags, **mark}])
    if rng.random() < 0.3:
        known = {str(i): token.__getstate__() for i, token in backend.get_added_tokens_decoder().items()}
        new = {"content": "<new>", "normalized": False, "special": rng.random() < 0.5, **flags}
        config["added_tokens_decoder"] = known | {str(next_id): new}
    elif rng.random() < 0.5:
        files["added_tokens"] = {"<tool>": next_id}
    backend.save(str(directory / "tokenizer.json"))
    for name, table in files.items():
        (directory / f"{name}.json").write_text(json.dumps(table))


@pytest.mark.parametrize("seed", range(NUM_DRAWS))
def test_drawn_tokenizer_files_give_transformers_ids_and_prompts(seed, tmp_path, worker):
    quiet_transformers()
    write_draw(tmp_path, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenizer_from_directory(tmp_path)
    for text in TEXTS:
        for around in (True, False):
            ids = theirs(text, add_special_tokens=around)["input_ids"]
            assert ours.encode(text, add_special_tokens=around) == ids, text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    prompt = ChatTemplate(ours.chat_template, tokens=ours.special.named, worker=worker).render(MESSAGES)
    assert prompt == theirs.apply_chat_template(MESSAGES, tokenize=False)
    assert ours.special.eos_ids == ({theirs.eos_token_id} - {None})
