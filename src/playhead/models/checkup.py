"""What is wrong with a checkpoint, found from its small files and headers: no weight is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from playhead.errors import PlayheadError
from playhead.models.build import config_problems, spec_from_config
from playhead.models.checkpoint.directory import INDEX_FILE, SINGLE_FILE, SafetensorsDirectory
from playhead.models.checkpoint.fill import check_tensors
from playhead.models.checkpoint.gguf_file import GgufFile
from playhead.models.checkpoint.gguf_model import GgufWeights, config_from_gguf, spec_from_gguf
from playhead.models.checkpoint.safetensors_file import SafetensorsFile
from playhead.models.checkpoint.sources import TensorSource
from playhead.models.config import read_json
from playhead.models.load import ModelDescription, load_generation_config
from playhead.models.text.chat import ChatTemplate
from playhead.models.text.generation_config import read_generation_config
from playhead.models.text.gguf_vocab import tokenizer_from_gguf
from playhead.models.text.tokenizer import Tokenizer, tokenizer_from_directory

Result = TypeVar("Result")
TRIAL = [{"role": "user", "content": "Hello"}]


class Checkup:
    """Looks at one part of a checkpoint after the other. A part that fails leaves the others to be looked at."""

    def __init__(self, path: Path) -> None:
        self.problems: list[str] = []
        self._path = path
        self._gguf: GgufFile | None = None
        self.num_tensors = 0

    def run(self) -> list[str]:
        """Every problem, in the order they would stop a load."""
        if self._path.is_file():
            self._gguf = self._tried(lambda: GgufFile(self._path))
            if self._gguf is None:
                return self.problems
        description = self._describe()
        self._check_weights(description)
        tokenizer = self._tried(self._load_tokenizer)
        if tokenizer is not None:
            self._check_text(tokenizer, description)
        return list(dict.fromkeys(self.problems))  # two parts may read one file

    def _tried(self, work: Callable[[], Result]) -> Result | None:
        """What the work gives; if it is refused, the refusal is a problem."""
        try:
            return work()
        except PlayheadError as error:
            self.problems.append(str(error))
            return None

    def _describe(self) -> ModelDescription | None:
        gguf = self._gguf
        config = self._tried(lambda: read_json(self._path / "config.json") if gguf is None else config_from_gguf(gguf))
        if config is None:
            return None
        if found := config_problems(config):
            self.problems += found
            return None
        spec = self._tried(lambda: spec_from_config(config) if gguf is None else spec_from_gguf(gguf, config))
        return None if spec is None else ModelDescription(path=self._path, config=config, spec=spec, gguf=gguf)

    def _check_weights(self, description: ModelDescription | None) -> None:
        """Each shard's header, then all tensors together against what the config asks for."""
        if self._gguf is None and not self._shards_are_whole():
            return
        source = self._tried(lambda: self._source(description))
        if source is None:
            return
        self.num_tensors = len(source.tensors)
        if description is not None:
            spec = description.spec
            self._tried(lambda: check_tensors(spec, source))

    def _source(self, description: ModelDescription | None) -> TensorSource | None:
        if self._gguf is None:
            return SafetensorsDirectory(self._path)
        return None if description is None else GgufWeights(self._gguf, description.config, self._path.name)

    def _shards_are_whole(self) -> bool:
        """Whether every file can be read; each that cannot is a problem, and so is an index of other tensors."""
        before = len(self.problems)
        index = self._path / INDEX_FILE
        weight_map = (self._tried(lambda: read_json(index)) or {}).get("weight_map") if index.is_file() else None
        placed = weight_map if isinstance(weight_map, dict) else {}
        if (self._path / SINGLE_FILE).is_file():
            single = self._tried(lambda: SafetensorsFile(self._path / SINGLE_FILE))
            if single is not None and placed and set(placed) != set(single.tensors):
                self.problems.append(
                    f"{INDEX_FILE}: it names other tensors than {SINGLE_FILE}, which is read. Remove the index."
                )
                return True
            return len(self.problems) == before
        names = {value for value in placed.values() if isinstance(value, str) and Path(value).name == value}
        for name in sorted(names):
            if not (self._path / name).is_file():
                self.problems.append(f"{name}: no such file, and {INDEX_FILE} places tensors there.")
                continue
            self._tried(lambda name=name: SafetensorsFile(self._path / name))  # type: ignore[misc]
        return len(self.problems) == before

    def _load_tokenizer(self) -> Tokenizer:
        if self._gguf is None:
            return tokenizer_from_directory(self._path)
        return tokenizer_from_gguf(self._gguf.metadata)

    def _check_text(self, tokenizer: Tokenizer, description: ModelDescription | None) -> None:
        if description is not None:
            known = description
            self._tried(lambda: load_generation_config(known, tokenizer))
            if tokenizer.max_token_id >= known.spec.vocab_size:
                self.problems.append(
                    f"tokenizer: it gives ids up to {tokenizer.max_token_id}; the model knows "
                    f"[0, {known.spec.vocab_size}). A text with such a token is refused."
                )
        elif self._gguf is None:
            self._tried(lambda: read_generation_config(self._path))
        special = tokenizer.special
        for name, token in (("bos_token", special.bos), ("eos_token", special.eos)):
            if token is not None and not tokenizer.knows(token):
                self.problems.append(f"tokenizer_config.json: the {name} {token!r:.80} is not in the vocabulary.")
        source = tokenizer.chat_template
        if source is not None:
            self._tried(lambda: self._render(source, tokenizer))

    def _render(self, source: str, tokenizer: Tokenizer) -> None:
        """A first message, which every conversation begins with."""
        template = ChatTemplate(source, tokens=tokenizer.special.named)
        try:
            template.render(TRIAL)
        finally:
            template.close()
