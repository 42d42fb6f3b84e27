"""`pull` and `list` with a mirror of the hub on this machine, whole, interrupted and hostile."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from typer.testing import CliRunner

from playhead.cli.main import app
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.errors import UnsupportedModelError
from playhead.llm import LLM
from playhead.models.checkpoint.hub import can_reach, hub_name, resolve_model
from playhead.models.load import describe_model
from playhead.sampling_params import SamplingParams
from tests.unit.models.checkpoint.mirror import Mirror, running
from tests.unit.models.checkpoint.test_gguf import LLAMA, write_gguf
from tests.unit.models.tiny import random_tensors

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
PICKLE = {"pytorch_model.bin": b"pickle", "modeling_evil.py": b"import os", "original/params.json": b"{}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The embedded model as a repository has it, with files that must stay where they are."""
    embedded = {path.name: path.read_bytes() for path in Path(resolve_model_name("embedded")).iterdir()}
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", random_tensors(LLAMA), gguf.GGMLQuantizationType.Q8_0)
    return {**embedded, **PICKLE}, path.read_bytes()


@pytest.fixture
def mirror(files, tmp_path, monkeypatch):
    """A mirror, an empty cache, and the hub's library pointed at both."""
    whole, quantised = files
    repositories = {"me/tiny": whole, "me/tiny-GGUF": {"README.md": b"#", "q8/m.gguf": quantised, "q4.gguf": b"x"}}
    with running(Mirror(repositories=repositories)) as mirror:
        for name, value in {
            "ENDPOINT": mirror.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": mirror.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        yield mirror


def playhead(*arguments):
    return CliRunner().invoke(app, arguments)


def test_a_pulled_model_runs_and_is_listed(mirror):
    done = playhead("pull", "me/tiny")
    assert done.exit_code == 0, done.output
    assert "playhead chat -m hf:me/tiny" in done.output
    assert mirror.fetched() == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *(name for name in ("training.json", "chat_template.jinja") if name in mirror.repositories["me/tiny"]),
    }
    with LLM("hf:me/tiny", max_model_len=64) as pulled, LLM("embedded", max_model_len=64) as embedded:
        assert pulled.generate("The whale", GREEDY)[0].outputs == embedded.generate("The whale", GREEDY)[0].outputs
    listed = playhead("list").output.split()
    assert listed[listed.index("me/tiny") :][3:5] == ["safetensors", "yes"]


def test_a_gguf_file_is_pulled_by_its_name(mirror):
    done = playhead("pull", "hf:me/tiny-GGUF:q8/m.gguf")
    assert done.exit_code == 0, done.output
    assert mirror.fetched() == {"m.gguf"}
    assert describe_model("hf:me/tiny-GGUF:q8/m.gguf").spec.family == "llama"
    assert "me/tiny-GGUF:q8/m.gguf" in playhead("list").output


def test_an_interrupted_download_goes_on_where_it_stopped(mirror, files):
    """What came is kept; only the rest is asked for."""
    mirror.breaks_after = 8000
    stopped = playhead("pull", "me/tiny-GGUF:q8/m.gguf")
    assert stopped.exit_code == 2
    assert "it goes on where it stopped" in stopped.output
    mirror.breaks_after, mirror.requests = None, []
    assert playhead("pull", "me/tiny-GGUF:q8/m.gguf").exit_code == 0
    ranges = [found for method, _, found in mirror.requests if method == "GET"]
    assert ranges == ["bytes=8000-"]
    assert resolve_model("me/tiny-GGUF:q8/m.gguf").read_bytes() == files[1]


def test_a_repository_of_gguf_files_says_which_it_has(mirror):
    refused = playhead("pull", "me/tiny-GGUF")
    assert refused.exit_code == 2
    assert "q8/m.gguf" in refused.output
    assert "Name one, as in me/tiny-GGUF:" in refused.output


@pytest.mark.parametrize("model", ["me/nothing", "me/tiny-GGUF:missing.gguf"])
def test_what_the_hub_does_not_have_is_refused_with_its_status(mirror, model):
    refused = playhead("pull", model)
    assert refused.exit_code == 2
    assert "(404)" in refused.output


@pytest.mark.parametrize(
    "model",
    [
        *("me/../etc", "../me/tiny", "me/tiny:../../x.gguf", "me/tiny:/etc/x.gguf", "me/tiny:a/../b.gguf"),
        *("me/tiny:weights.bin", "me/tiny:..gguf", "me/tiny:.gguf", "hf:", "hf:/etc", "me/tiny:a\\b.gguf", "me/tiny:"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_and_nobody_is_asked(mirror, model):
    assert hub_name(model) is None
    assert playhead("pull", model).exit_code == 2
    assert mirror.requests == []


def test_a_revision_that_leads_elsewhere_is_refused(mirror):
    assert "revision" in playhead("pull", "me/tiny", "--revision", "../../x").output
    assert mirror.requests == []


def test_a_mirror_cannot_place_files_outside_the_cache(mirror, tmp_path):
    names = ["../evil.json", "../../evil.safetensors", "/tmp/evil.json", "a/../../evil.json"]
    mirror.repositories = {"me/evil": {"config.json": b"{}", **dict.fromkeys(names, b"evil")}}
    resolve_model("me/evil")
    assert mirror.fetched() == {"config.json"}
    assert [path.name for path in tmp_path.rglob("*evil.*")] == []


def test_an_unreachable_hub_is_one_error_after_one_try_that_says_how_to_bring_files(mirror, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    refused = playhead("pull", "me/tiny")
    assert refused.exit_code == 2
    for words in ("the hub cannot be reached", "give its path", "HF_HOME", "HF_ENDPOINT"):
        assert words in refused.output
    assert mirror.requests == []


def test_what_is_in_the_cache_runs_without_the_hub(mirror, monkeypatch):
    online = resolve_model("me/tiny")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    mirror.requests = []
    assert resolve_model("hf:me/tiny") == online
    assert mirror.requests == []


def test_a_directory_comes_before_a_hub_id_of_the_same_name_unless_the_prefix_says_so(mirror, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(resolve_model_name("embedded"), tmp_path / "me" / "tiny")
    assert resolve_model("me/tiny") == Path("me/tiny")
    assert mirror.requests == []
    assert "snapshots" in resolve_model("hf:me/tiny").parts


def test_a_model_that_does_not_run_is_listed_with_the_reason(mirror):
    mirror.repositories = {"me/strange": {"config.json": b'{"model_type": "mamba"}'}}
    with pytest.raises(UnsupportedModelError, match="mamba"):
        describe_model("me/strange")
    output = playhead("list").output
    assert "no" in output.split()
    assert "'mamba'" in output


def test_a_model_that_cannot_run_is_refused_before_its_weights_are_fetched(mirror):
    mirror.repositories = {"me/strange": {"config.json": b'{"model_type": "mamba"}', "model.safetensors": b"x" * 99}}
    refused = playhead("pull", "me/strange")
    assert refused.exit_code == 2
    assert "'mamba'" in refused.output
    assert mirror.fetched() == {"config.json"}


def test_the_librarys_own_bars_are_not_shown(mirror):
    assert "Fetching" not in playhead("pull", "me/tiny").output
    assert not are_progress_bars_disabled()


def test_a_proxy_stands_for_the_hub(mirror, monkeypatch):
    monkeypatch.setenv("https_proxy", mirror.url)
    assert can_reach("https://hub.invalid")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert not can_reach("https://hub.invalid")
