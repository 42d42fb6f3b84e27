"""Scripts written for vLLM's and SGLang's offline APIs run here: nothing but the import line is different.

Each script has a `main(model)` that asserts what it found. They run in this process and share nothing but imports.
"""

from __future__ import annotations

import ast
import importlib.util
from importlib.resources import files
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VLLM, SGLANG = sorted(HERE.glob("vllm/*.py")), sorted(HERE.glob("sglang/*.py"))
VLLM_NAMES = {
    "playhead": {
        "LLM", "SamplingParams", "RequestOutput", "CompletionOutput", "TextPrompt", "TokensPrompt", "AsyncEngineArgs",
        "AsyncEngine",
    },
    "playhead.inputs": {"PromptType", "TextPrompt", "TokensPrompt"},
    "playhead.outputs": {"RequestOutput", "CompletionOutput", "Logprob"},
    "playhead.sampling_params": {"SamplingParams", "RequestOutputKind", "StructuredOutputsParams"},
}  # fmt: skip
"""What vLLM has under the same names. `AsyncEngine` is imported as `AsyncLLMEngine`."""

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """The embedded model with a chat template, as a directory somebody has downloaded."""
    directory = tmp_path_factory.mktemp("model")
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        (directory / name).symlink_to(str(files("playhead") / "assets" / "embedded" / name))
    config = files("playhead") / "assets" / "embedded" / "tokenizer_config.json"
    (directory / "tokenizer_config.json").write_text(config.read_text())
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return str(directory)


def run(path: Path, model: str) -> None:
    spec = importlib.util.spec_from_file_location(f"compat_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(model)


@pytest.mark.parametrize("path", VLLM, ids=lambda path: path.stem)
def test_a_script_for_vllm_runs(path, model):
    run(path, model)


@pytest.mark.parametrize("path", SGLANG, ids=lambda path: path.stem)
def test_a_script_for_sglang_runs(path, model):
    run(path, model)


def imported(path: Path) -> list[tuple[str, str]]:
    """What a script imports of the package: (module, name)."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module or "", name.name) for node in nodes for name in node.names if "playhead" in (node.module or "")
    ]


@pytest.mark.parametrize("path", VLLM, ids=lambda path: path.stem)
def test_a_script_for_vllm_imports_names_that_vllm_has(path):
    names = imported(path)
    assert names
    assert [name for name in names if name[1] not in VLLM_NAMES.get(name[0], ())] == []
    others = [line for line in path.read_text().splitlines() if "playhead" in line and not line.startswith("from ")]
    assert others == []


@pytest.mark.parametrize("path", SGLANG, ids=lambda path: path.stem)
def test_a_script_for_sglang_differs_in_its_import_line(path):
    lines = [line for line in path.read_text().splitlines() if "playhead" in line]
    assert lines == ["import playhead.sgl as sgl"]


def test_there_are_as_many_scripts_as_the_documents_say():
    assert (len(VLLM), len(SGLANG)) == (43, 10)
