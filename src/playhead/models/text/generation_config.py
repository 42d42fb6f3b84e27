"""generation_config.json: how a model's authors want it sampled and where it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from playhead.errors import CheckpointError, RequestError, shown
from playhead.models.config import read_json
from playhead.sampling_params import PARAMETERS, DefaultInt, SamplingKind, SamplingParams

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """What a request without parameters of its own starts from, and the token ids that end an answer.

    `eos_file` is the file the ids came from: generation_config.json, or config.json where that one has none.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    eos_ids: frozenset[int] = frozenset()
    eos_file: str = GENERATION_CONFIG


def read_generation_config(directory: Path) -> GenerationConfig:
    """From the files of a checkpoint's directory; `SamplingParams()` and no end where they say nothing."""
    ids, name = end_ids(directory)
    return GenerationConfig(
        sampling=default_sampling(_table(directory / GENERATION_CONFIG)), eos_ids=ids, eos_file=name
    )


def end_ids(directory: Path) -> tuple[frozenset[int], str]:
    """The ids that end an answer, and the file that says so: the generation config, or else the model's config.

    A config with a text part may have them there alone.
    """
    for name in (GENERATION_CONFIG, "config.json"):
        table = _table(directory / name)
        text = table.get("text_config")
        for level in (table, text if isinstance(text, dict) else {}):
            if ids := _eos_ids(name, level.get("eos_token_id")):
                return ids, name
    return frozenset(), GENERATION_CONFIG


def default_sampling(table: dict[str, object]) -> SamplingParams:
    """The sampling fields of a generation config, under vLLM's names. `do_sample: false` is greedy, as in transformers.

    {"temperature": 0.6, "top_k": 20, "max_new_tokens": 2048} is SamplingParams(temperature=0.6, top_k=20,
    max_tokens=2048), where the 2048 give way if the context has less room.
    """
    known = [name for name, row in PARAMETERS.items() if row.in_checkpoints and table.get(name) is not None]
    fields = {name: table[name] for name in known}
    does_sample, max_new_tokens = table.get("do_sample"), table.get("max_new_tokens")
    if does_sample is not None and not isinstance(does_sample, bool):
        raise _bad("do_sample", shown(does_sample), "true or false")
    if does_sample is False:
        changes_greedy = [name for name in known if PARAMETERS[name].kind is SamplingKind.EVERYTHING]
        fields = {"temperature": 0.0} | {name: table[name] for name in changes_greedy}
    try:
        if max_new_tokens is not None:
            fields["max_tokens"] = SamplingParams(max_tokens=max_new_tokens).max_tokens  # type: ignore[arg-type]
            fields["max_tokens"] = DefaultInt(fields["max_tokens"])  # type: ignore[call-overload]
        return SamplingParams(**fields)  # type: ignore[arg-type]
    except RequestError as error:
        raise CheckpointError(
            GENERATION_CONFIG, f"{error.where}: {error.found}", error.wanted, "Correct the file or remove the key."
        ) from None


def check_end_ids(eos_ids: frozenset[int], vocab_size: int, where: str) -> None:
    """Refuse an id that the model can never give: a request would wait for it, or fail for it."""
    for token_id in sorted(eos_ids):
        if not 0 <= token_id < vocab_size:
            raise CheckpointError(
                where,
                f"the end id {token_id}",
                f"ids in [0, {vocab_size}), the model's vocabulary",
                "The file belongs to another model; get the one that came with the weights.",
            )


def _eos_ids(where: str, value: object) -> frozenset[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise _bad("eos_token_id", shown(token_id), "a token id or a list of them", where)
    return frozenset(ids)


def _bad(key: str, found: str, wanted: str, where: str = GENERATION_CONFIG) -> CheckpointError:
    return CheckpointError(f"{where}, key {key!r}", found, wanted, "Correct the file or remove the key.")


def _table(path: Path) -> dict[str, object]:
    return read_json(path) if path.is_file() else {}
