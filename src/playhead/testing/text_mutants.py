"""Bugs between a checkpoint's files and the text of requests, and what notices them."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE, Unigram

import playhead.models.load
from playhead.engine import conversations
from playhead.engine.conversations import ChatOptions
from playhead.errors import ChatTemplateError, CheckpointError, PlayheadError, RequestError, UnsupportedModelError
from playhead.llm import LLM
from playhead.models.checkpoint import bounded_json, gguf_file, safetensors_file
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkup import Checkup
from playhead.models.text import chat, detokenize, library, tokenizer
from playhead.models.text.chat import ChatTemplate
from playhead.models.text.decoder_rules import DecoderRules, decoder_rules
from playhead.models.text.detokenize import IncrementalDetokenizer, TokenBytes
from playhead.models.text.template_worker import TemplateLimits, TemplateWorker
from playhead.models.text.token_files import TokenFiles
from playhead.models.text.tokenizer import SpecialTokens, Tokenizer, tokenizer_from_directory
from playhead.sampling_params import SamplingParams
from playhead.testing import hostile_base as base
from playhead.testing.hostile_run import SETTINGS
from playhead.testing.mutant import Checker, Mutant, Patch, swapped
from playhead.testing.scripted_backend import embedded_reader

NO_SPECIAL = SpecialTokens()


def padding_obeyed() -> Patch:
    def only_dropout(backend: Backend) -> None:
        if isinstance(backend.model, BPE):
            backend.model.dropout = None

    return swapped(tokenizer, "make_steady", only_dropout)


def dropout_obeyed() -> Patch:
    def no_dropout(backend: Backend) -> None:
        backend.no_truncation()
        backend.no_padding()

    return swapped(tokenizer, "make_steady", no_dropout)


def panics_let_through() -> Patch:
    return swapped(library, "PANIC", "no such name")


def mark_of_templates() -> Patch:
    return swapped(conversations, "END_MARK", "<")


def last_message_goes_on() -> list[str]:
    """The prompt ends with the last message, whatever the template writes after it."""
    template = "{{ messages[0]['content'] }}</end>"
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True, chat_template=template)
    found = embedded_reader().chat_text([{"role": "assistant", "content": "a "}], options)
    return [] if found == "a " else [f"{found!r}"]


def answers_begin_a_text() -> Patch:
    def forget(self: IncrementalDetokenizer, prompt_ids: Sequence[int]) -> None:
        return None

    return swapped(IncrementalDetokenizer, "_begin_after", forget)


def decoders_taken_by_name() -> Patch:
    rules_of = decoder_rules

    def by_name(decoder: Mapping[str, Any]) -> DecoderRules:
        parts = decoder.get("decoders", [decoder])
        return rules_of({"type": "Sequence", "decoders": [{**part, "stop": 0} for part in parts]})

    return swapped(detokenize, "decoder_rules", by_name)


def generation_config_ignored() -> Patch:
    def own_defaults(self: LLM) -> SamplingParams:
        return SamplingParams()

    return swapped(LLM, "get_default_sampling_params", own_defaults)


def end_ids_unchecked() -> Patch:
    def unchecked(eos_ids: frozenset[int], vocab_size: int, where: str) -> None:
        return None

    return swapped(playhead.models.load, "check_end_ids", unchecked)


def prompts_unbounded() -> Patch:
    def unbounded(self: Tokenizer, text: str, max_context: int) -> None:
        return None

    return swapped(Tokenizer, "_check_length", unbounded)


def cut_texts_whole() -> Patch:
    def whole(self: Tokenizer, text: str, num_tokens: int) -> str:
        return text

    return swapped(Tokenizer, "ending", whole)


def numbers_unbounded() -> Patch:
    def any_length(digits: str) -> str:
        return digits

    return swapped(bounded_json, "_short", any_length)


def tensors_uncounted() -> Patch:
    return swapped(safetensors_file, "MAX_TENSORS", 1 << 40)


def names_repeated() -> Patch:
    def last_wins(pairs: list[tuple[str, object]]) -> dict[str, object]:
        return dict(pairs)

    return swapped(bounded_json, "_unique", last_wins)


def arrays_uncounted() -> Patch:
    return swapped(gguf_file, "MAX_ARRAY_ITEMS", 1 << 40)


def template_files_of_any_size() -> Patch:
    return swapped(tokenizer, "MAX_TEMPLATE_BYTES", 1 << 40)


def token_files_ignored() -> Patch:
    def as_it_is(backend: Backend, files: TokenFiles) -> None:
        return None

    return swapped(tokenizer, "complete", as_it_is)


def template_limits_changed(**limits: Any) -> Patch:
    start = TemplateWorker._start

    def loose(self: TemplateWorker) -> subprocess.Popen[bytes]:
        asked, self._limits = self._limits, replace(self._limits, **limits)
        try:
            return start(self)
        finally:
            self._limits = asked

    return swapped(TemplateWorker, "_start", loose)


def memory_unlimited() -> Patch:
    return template_limits_changed(memory_bytes=1 << 42)


def time_unlimited() -> Patch:
    return template_limits_changed(cpu_s=1e6)


def dead_process_kept() -> Patch:
    def keep(self: TemplateWorker, *, is_killed: bool) -> None:
        return None

    return swapped(TemplateWorker, "_stop", keep)


def surrogates_handed_over() -> Patch:
    def pass_on(job: Mapping[str, object]) -> bytes:
        return json.dumps(job).encode()

    return swapped(chat, "_payload", pass_on)


def doctor_reads_no_template() -> Patch:
    def unread(self: Checkup, source: str, tokenizer: Tokenizer) -> None:
        return None

    return swapped(Checkup, "_render", unread)


@contextmanager
def checkpoint(**files: object) -> Any:
    """A sound checkpoint's directory with some of its JSON files replaced."""
    with tempfile.TemporaryDirectory(prefix="playhead-text-") as name:
        base.write_files(Path(name), base.base_files())
        for file, value in files.items():
            (Path(name) / f"{file}.json").write_bytes(base.dumped(value))
        yield Path(name)


def refusals(
    error: type[PlayheadError] | tuple[type[PlayheadError], ...], work: Callable[[], object], what: str
) -> list[str]:
    """What is wrong if the work is not refused with this error."""
    try:
        work()
    except error:
        return []
    except BaseException as other:
        if type(other).__name__ != "PanicException":  # any other error means that a mutant is out of date
            raise
        return [f"{what} ended in a panic"]
    return [f"{what} was taken"]


def byte_level() -> Backend:
    return Backend.from_buffer(base.tokenizer_json())


def ids_are_whole_and_alike() -> list[str]:
    saved = byte_level()
    saved.enable_truncation(3)
    saved.enable_padding(length=40)
    saved.model.dropout = 0.9
    made, text = Tokenizer(saved, NO_SPECIAL), "hello " * 9
    wanted = byte_level().encode(text).ids
    found = [made.encode(text, add_special_tokens=True) for _ in range(5)]
    return [] if found == [wanted] * 5 else [f"{found[0]} and others of a text whose ids are {wanted}"]


def panics_are_typed() -> list[str]:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.FixedLength(0)
    broken = Tokenizer(backend, NO_SPECIAL)
    found = refusals(RequestError, lambda: broken.encode("hello", add_special_tokens=True), "a text it panics on")
    return found + refusals(CheckpointError, broken.try_out, "a tokenizer that panics")


def prompt_and_answer_are_one_text() -> list[str]:
    backend = Backend(Unigram([("<unk>", -9.0), ("▁hello", -1.0), ("▁world", -1.0)], unk_id=0))
    backend.decoder = decoders.Metaspace()
    found = Tokenizer(backend, NO_SPECIAL).decode([2], prompt_ids=[1])
    return [] if found == " world" else [f"'hello' goes on with {found!r}"]


def decoder_parameters_are_read() -> list[str]:
    backend = byte_level()
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    return refusals(UnsupportedModelError, lambda: TokenBytes(backend), "a decoder that strips the end of a text")


def requests_start_from_the_file() -> list[str]:
    table = {**base.GENERATION, "temperature": 90.0, "top_k": 1, "top_p": 1.0}
    with checkpoint(generation_config=table) as directory, LLM(str(directory), SETTINGS) as llm:
        (narrow,) = llm.generate("hello")
        (greedy,) = llm.generate("hello", SamplingParams(temperature=0))
    same = narrow.outputs[0].token_ids == greedy.outputs[0].token_ids
    return [] if same else ["top_k 1 of the file is not what a request starts from"]


def end_ids_are_of_the_vocabulary() -> list[str]:
    with checkpoint(generation_config={"eos_token_id": [258, 4000]}) as directory:
        return refusals(CheckpointError, lambda: LLM(str(directory), SETTINGS), "end id 4000")


def long_prompts_are_not_encoded() -> list[str]:
    made = Tokenizer(byte_level(), NO_SPECIAL)
    return refusals(
        RequestError,
        lambda: made.encode("x" * 100_000, add_special_tokens=True, max_context=16),
        "a text of 100,000 characters for a context of 16",
    )


def files_are_counted_first() -> list[str]:
    def header(text: bytes) -> None:
        path = Path(directory) / "x.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        safetensors_file.SafetensorsFile(path)

    def array() -> None:
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + base.text("k") + struct.pack("<IIQ", 9, 0, (1 << 21) + 1)
        base.write_files(Path(directory), {"x.gguf": base.Sparse(head=head, num_bytes=1 << 30)})
        GgufFile(Path(directory) / "x.gguf")

    entry = b'"t%d": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
    many = b"{" + b", ".join(entry % i for i in range((1 << 15) + 2)) + b"}"
    number = b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, ' + b"1" * 200 + b"]}}"
    twice = b"{" + b", ".join([entry % 1] * 2) + b"}"
    with tempfile.TemporaryDirectory() as directory:
        found = refusals(CheckpointError, lambda: header(many), "a file of 32,770 tensors")
        found += refusals(CheckpointError, lambda: header(twice), "a name that appears twice")
        found += refusals(CheckpointError, array, "an array of two million items")
        try:
            header(number)
        except CheckpointError as error:
            found += [] if "digits" in str(error) else [f"a number of 200 digits was read: {error!s:.80}"]
    return found


def texts_to_be_cut_are_not_encoded() -> list[str]:
    """Of a text of which the last tokens are kept, little more than those is encoded."""
    reader, encoded, encode = embedded_reader(), list[int](), Tokenizer._ids

    def counted(self: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        encoded.append(len(text))
        return encode(self, text, add_special_tokens=add_special_tokens)

    with swapped(Tokenizer, "_ids", counted):
        reader.check("whale " * 100_000, SamplingParams(truncate_prompt_tokens=5, max_tokens=1))
    return [] if sum(encoded) < 200_000 else [f"{sum(encoded)} characters were encoded for 5 tokens"]


def template_files_are_measured_first() -> list[str]:
    with checkpoint() as directory:
        (directory / "chat_template.jinja").write_bytes(b"x" * (chat.MAX_SOURCE_CHARS * 4 + 1))
        return refusals(CheckpointError, lambda: tokenizer_from_directory(directory), "a template file over its limit")


def named_tokens_are_special() -> list[str]:
    """A vocabulary may have the end of a turn among its ordinary tokens, and a file beside it may name that token."""
    with checkpoint(special_tokens_map={"eos_token": "a"}) as directory:
        backend = Backend(BPE(vocab={"a": 0, "b": 1}, merges=[]))
        backend.decoder = decoders.ByteLevel()
        backend.save(str(directory / "tokenizer.json"))
        text = tokenizer_from_directory(directory).decode([1, 0])
        return [] if text == "b" else [f"an answer that ends with its end token has the text {text!r}"]


def a_template_is_limited() -> list[str]:
    """Memory, CPU time, and a process for the next conversation."""
    worker = TemplateWorker(TemplateLimits(cpu_s=0.3, memory_bytes=64 << 20))

    def render(source: str) -> str:
        return ChatTemplate(source, tokens={}, worker=worker).render([])

    slow = "{% for i in range(3000) %}{% for x in ('x' * 9000) %}{% endfor %}{% endfor %}"
    try:
        found = refusals(ChatTemplateError, lambda: render("{{ 'a'.center(100000000) | length }}"), "100 MB of text")
        found += refusals(ChatTemplateError, lambda: render(slow), "a template of many seconds")
        try:
            return found + ([] if render("next") == "next" else ["the next conversation got another's answer"])
        except ChatTemplateError as error:
            return [*found, f"the next conversation was refused: {error}"]
    finally:
        worker.close()


def messages_are_text() -> list[str]:
    worker = TemplateWorker()
    template = ChatTemplate("{{ messages[0].content }}", tokens={}, worker=worker)
    try:
        return refusals(RequestError, lambda: template.render([{"content": "\ud800"}]), "a lone surrogate")
    finally:
        worker.close()


def the_doctor_sees_the_template() -> list[str]:
    with checkpoint(tokenizer_config={"eos_token": "<eos>", "chat_template": "{{ 1 / 0 }}"}) as directory:
        return [] if Checkup(directory).run() else ["a template that cannot be rendered went unnoticed"]


def known(name: str, source: str, apply: Callable[[], Patch], checker: str) -> Mutant:
    return Mutant(name=name, source=source, apply=apply, killed_by=(checker,))


WHOLE, PANICS, ONE_TEXT = "ids are whole and alike", "panics are typed", "prompt and answer are one text"
FILES, TEMPLATES = "files are counted before they are read", "a template has limits"
TEMPLATE_FILE = "a template's file is measured before it is read"
NAMED = "named tokens are special"

TEXT_MUTANTS: tuple[Mutant, ...] = (
    known("truncation and padding obeyed", "fine-tunes saved with them", padding_obeyed, WHOLE),
    known("dropout obeyed", "tokenizers saved for training", dropout_obeyed, WHOLE),
    known("panics let through", "found here: a BaseException of a library", panics_let_through, PANICS),
    known("every answer begins a text", "found here: 'hello' + '▁world'", answers_begin_a_text, ONE_TEXT),
    known("decoders taken by name", "found here", decoders_taken_by_name, "decoder parameters are read"),
    known("generation config ignored", "found here", generation_config_ignored, "requests start from the file"),
    known("end ids unchecked", "found here: min_tokens and an end nobody has", end_ids_unchecked, "end ids are known"),
    known("prompts of any length encoded", "found here: 2.2 GB for 10 MB", prompts_unbounded, "long prompts"),
    known("a text encoded whole to be cut", "found here: 17 s for 7.8 MB", cut_texts_whole, "texts to be cut"),
    known("numbers of any length", "found here", numbers_unbounded, FILES),
    known("tensors uncounted", "found here: 140,000 take 2 s", tensors_uncounted, FILES),
    known("a name twice in a header", "two readers would see two files", names_repeated, FILES),
    known("arrays uncounted", "found here: sparse files", arrays_uncounted, FILES),
    known(
        "template files of any size", "found here: read whole, then counted", template_files_of_any_size, TEMPLATE_FILE
    ),
    known("token files ignored", "found here: ends of turns among ordinary tokens", token_files_ignored, NAMED),
    known("a template's memory unlimited", "'%999999999d'", memory_unlimited, TEMPLATES),
    known("a template's time unlimited", "nested loops", time_unlimited, TEMPLATES),
    known("a dead template process kept", "one bad template ends all chats", dead_process_kept, TEMPLATES),
    known("a mark that templates write", "found here: a last message of '<'", mark_of_templates, "the last message"),
    known("surrogates handed over", "found here", surrogates_handed_over, "messages are text"),
    known("a doctor that reads no template", "found here", doctor_reads_no_template, "the doctor sees the template"),
)

TEXT_CHECKERS: tuple[Checker, ...] = (
    Checker(name="the last message", run=last_message_goes_on),
    Checker(name=WHOLE, run=ids_are_whole_and_alike),
    Checker(name=PANICS, run=panics_are_typed),
    Checker(name=ONE_TEXT, run=prompt_and_answer_are_one_text),
    Checker(name="decoder parameters are read", run=decoder_parameters_are_read),
    Checker(name="requests start from the file", run=requests_start_from_the_file),
    Checker(name="end ids are known", run=end_ids_are_of_the_vocabulary),
    Checker(name="long prompts", run=long_prompts_are_not_encoded),
    Checker(name="texts to be cut", run=texts_to_be_cut_are_not_encoded),
    Checker(name=FILES, run=files_are_counted_first),
    Checker(name=TEMPLATE_FILE, run=template_files_are_measured_first),
    Checker(name=NAMED, run=named_tokens_are_special),
    Checker(name=TEMPLATES, run=a_template_is_limited),
    Checker(name="messages are text", run=messages_are_text),
    Checker(name="the doctor sees the template", run=the_doctor_sees_the_template),
)
