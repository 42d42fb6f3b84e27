"""Every command does its job on the embedded model, and says in one line why when it cannot."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from playhead.cli import audit as audit_command
from playhead.cli.command import asked_for, engine, in_flags
from playhead.cli.doctor import Machine, default_rows, traps
from playhead.cli.generate import how_it_ran, run_generate, tokens_per_s
from playhead.cli.loading import sampling_of
from playhead.cli.main import app
from playhead.cli.options import GenerateOptions
from playhead.cli.other_flags import OTHER_FLAGS, instead_of
from playhead.cli.screen import Screen
from playhead.engine.config import ENGINE_SETTINGS
from playhead.engine.foreign import FOREIGN_SETTINGS
from playhead.engine.memory import num_weight_bytes
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.env import state_directory
from playhead.errors import ConfigError
from playhead.graph.report import Check, Finding, Report
from playhead.llm import LLM, EngineConfig
from playhead.models.load import describe_model
from playhead.sampling_params import SamplingParams
from playhead.serve.auth import load_keys
from playhead.serve.config import read_config
from playhead.settings import parse_size, show_size
from playhead.types import Mode

FEW = ("generate", "The whale", "--max-tokens", "6", "--enforce-eager")


def run(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(args), input=stdin)


def captured_config(monkeypatch: pytest.MonkeyPatch, *args: str) -> EngineConfig:
    """The configuration that reaches the engine for these arguments."""
    configs: list[EngineConfig] = []
    monkeypatch.setattr("playhead.cli.generate.run_generate", lambda *given: configs.append(given[-1]))
    result = run("generate", "x", *args)
    assert result.exit_code == 0, result.output
    return configs[0]


def test_generate_gives_a_pipe_the_text_alone():
    result = run(*FEW, "--temperature", "0")
    with LLM() as llm:
        wanted = llm.generate("The whale", SamplingParams(max_tokens=6, temperature=0))[0].outputs[0].text
    assert result.exit_code == 0, result.output
    assert result.stdout == wanted + "\n"


def test_flags_change_single_values_of_the_models_own_sampling():
    with LLM() as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.8)
        assert sampling_of(llm, asked_for({"top_p": 0.5, "top_k": None})) == SamplingParams(temperature=0.8, top_p=0.5)
        assert sampling_of(llm, asked_for({"temperature": 0.0})) == SamplingParams(temperature=0)


def test_generate_repeats_itself_for_a_seed():
    first, again, other = (run(*FEW, "--seed", seed).stdout for seed in ("7", "7", "8"))
    assert first == again != other


def test_generate_shows_a_terminal_the_figures():
    screen = io.StringIO()
    terminal = Screen(file=screen, force_terminal=True, width=200, color_system=None)
    run_generate(terminal, ["The whale"], GenerateOptions(), {"max_tokens": 3, "seed": 1}, EngineConfig())
    last = screen.getvalue().splitlines()[-1]
    assert screen.getvalue().startswith("The whale")
    for part in ("3 tokens", "tokens/s", "first token after", "1 breakable graph, 2 full graph", "0 cached tokens"):
        assert part in last


def test_generate_prints_json_of_every_sample():
    result = run(*FEW, "--json", "--n", "2", "--logprobs", "1", "--seed", "3")
    record = json.loads(result.stdout)
    assert [len(completion["token_ids"]) for completion in record["outputs"]] == [6, 6]
    completion = record["outputs"][0]
    first = completion["logprobs"][0]
    assert completion["text"].startswith(first[str(completion["token_ids"][0])]["decoded_token"])
    assert 1 in [entry["rank"] for entry in first.values()]
    assert sum(record["steps"].values()) == 6
    assert set(record["steps"]) == {"eager: graphs are off"}


def test_the_rate_counts_the_tokens_of_all_samples():
    with LLM("embedded", max_num_seqs=4) as llm:
        (output,) = llm.generate("The whale", SamplingParams(n=3, max_tokens=5, seed=1, ignore_eos=True))
    metrics = output.metrics
    assert tokens_per_s([output]) == pytest.approx(12 / (metrics.finished_s - metrics.first_token_s))


def test_generate_prints_every_sample_and_its_logprobs():
    result = run(*FEW, "--n", "2", "--logprobs", "0", "--seed", "3")
    assert "[1]" in result.stdout
    assert "[2]" in result.stdout
    assert "logprob" in result.stdout


def test_generate_stops_before_the_stop_text():
    whole = run(*FEW, "--temperature", "0", "--max-tokens", "20").stdout
    stop = whole[5:8]
    cut = run(*FEW, "--temperature", "0", "--max-tokens", "20", "--stop", stop).stdout
    assert cut == whole[: whole.index(stop)] + "\n"


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (("generate", "x", "--temperature", "-1"), "--temperature: -1"),
        (("generate", "x", "--kv-memory-bytes", "1KiB"), "--kv-memory-bytes: found 1024B"),
        (("generate", "x", "--kv-memory-bytes", "900KiB", "--max-model-len", "1024"), "--max-model-len: found 1024"),
        (("generate", "x", "--kv-memory-bytes", "much"), "--kv-memory-bytes: found 'much'"),
        (("generate", "x", "--kv-memory-bytes", "24"), "Write 24GiB"),
        (("generate", "x", "--max-tokens", "many"), "--max-tokens: found 'many'; wanted a 64-bit integer from 1"),
        (("generate", "x", "--no-such-flag"), "See root generate --help"),
        (("no-such-command",), "No such command"),
        (("plan",), "Missing argument 'MODEL'"),
        (("generate", "x", "--dtype", "int3"), "--dtype: found"),
        (("generate", "x", "--device", "cuda:99"), "--device: found"),
        (("generate", "x", "--model", "no such model"), "no such model"),
        (("plan", "embedded", "--gpu-memory", "5MB"), "weights alone"),
        (
            ("plan", "embedded", "--gpu-memory", "10.6MB", "--max-model-len", "1024"),
            "or raise --kv-memory-bytes to 491520B",
        ),
        (("audit", "--max-num-seqs", "0"), "--max-num-seqs"),
        (("audit", "--enforce-eager"), "--graph-mode: found eager"),
        (("generate", "x", "--graph-mode", "fast"), "one of full, breakable"),
        (("bench", "throughput", "--num-prompts", "0"), "num-prompts"),
        (("bench", "throughput", "--random-range-ratio", "1"), "random-range-ratio"),
        (("bench", "throughput", "--input-len", "1000", "--output-len", "100"), "1100 tokens together"),
        (("bench", "latency", "--num-iters", "0"), "num-iters"),
        (("bench", "latency", "--temperature", "-1"), "--temperature"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(args, field):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("playhead: ")
    assert result.stderr.count("\n") == 1
    assert field in result.stderr


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (("--max-model-len", "64"), EngineConfig(max_model_len=64)),
        (("--context-length", "64"), EngineConfig(max_model_len=64)),
        (("--max-num-seqs", "3"), EngineConfig(max_num_seqs=3)),
        (("--max-running-requests", "3"), EngineConfig(max_num_seqs=3)),
        (("--max-num-batched-tokens", "9"), EngineConfig(max_num_batched_tokens=9)),
        (("--chunked-prefill-size", "9"), EngineConfig(max_num_batched_tokens=9)),
        (("--page-size", "8"), EngineConfig(page_size=8)),
        (("--block-size", "8"), EngineConfig(page_size=8)),
        (("--enforce-eager",), EngineConfig(graph_mode=Mode.EAGER)),
        (("--disable-cuda-graph",), EngineConfig(graph_mode=Mode.EAGER)),
        (("--graph-mode", "piecewise"), EngineConfig(graph_mode=Mode.PIECEWISE)),
        (("--graph-mode", "full"), EngineConfig(graph_mode=Mode.FULL)),
        (("--no-enable-prefix-caching",), EngineConfig(enable_prefix_caching=False)),
        (("--disable-radix-cache",), EngineConfig(enable_prefix_caching=False)),
        (("--kv-memory-bytes", "2MiB"), EngineConfig(kv_memory_bytes=2 << 20)),
        (("--dtype", "bfloat16", "--device", "cpu"), EngineConfig(dtype="bfloat16", device="cpu")),
        ((), EngineConfig()),
    ],
)
def test_both_spellings_reach_the_engine(monkeypatch, args, wanted):
    assert captured_config(monkeypatch, *args) == wanted


def test_max_tokens_is_a_bound_on_the_command_line():
    """The context has room for fewer than were asked for: those come, and nothing is refused."""
    result = run(
        "generate", "The whale", "--max-tokens", "500", "--max-model-len", "16", "--temperature", "0", "--json"
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert len(record["prompt_token_ids"]) + len(record["outputs"][0]["token_ids"]) == 16


def test_a_switch_wins_over_a_value(monkeypatch):
    args = ("--enforce-eager", "--graph-mode", "piecewise")
    assert captured_config(monkeypatch, *args).graph_mode is Mode.EAGER


@pytest.mark.parametrize("declared", ENGINE_SETTINGS, ids=lambda declared: declared.name)
def test_every_setting_can_be_a_flag(declared):
    """A setting that is added later gets its flags, aliases and switches from its declaration alone."""
    flags = engine(declared.name)
    (values, switches) = ([], [])
    for parameter in flags.parameters():
        (switches if parameter.annotation is bool else values).append(parameter.default.param_decls)
    assert [flag for flag, *_ in values] == ([] if declared.kind is bool else [declared.flag])
    assert bool(switches) == (declared.kind is bool or bool(declared.setting.switches))


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        (
            "--kv-cache-dtype=fp8",
            "--kv-cache-dtype: no such option. Playhead keeps KV in the model's dtype.",
        ),
        ("--num-gpu-blocks-override=8", "Set --kv-memory-bytes instead."),
        ("--swap-space=4", "--swap-space: no such option. Leave it out: it has no effect here."),
        ("--model-path=x", "--model-path: no such option. The model stands without a flag."),
        ("--colour=red", "No such option: --colour."),
    ],
)
def test_a_flag_of_another_engine_is_refused_with_what_to_do(flag, says):
    result = run("plan", "embedded", flag)
    assert result.exit_code == 2, result.output
    assert says in result.output


def test_every_flag_of_another_engine_is_one_that_no_command_has():
    known = {word for command in ("serve", "generate") for word in run(command, "--help").output.split()}
    assert {flag for flag in OTHER_FLAGS if flag in known} == {"--model"}  # of generate
    assert all(instead_of("--" + name.replace("_", "-")) for name in FOREIGN_SETTINGS)


def test_a_command_that_names_an_unknown_setting_does_not_start():
    with pytest.raises(AssertionError, match=r"no such settings: .'page_sise'"):
        engine("memory", page_sise=4)


def test_sizes_read_as_people_write_them():
    written = ("139GiB", "80GB", "500MiB", "1.5 kb", "7b", "7B", "2tib", "24G")
    sizes = [139 << 30, 80 * 10**9, 500 << 20, 1500, 7, 7, 2 << 40, 24 * 10**9]
    assert [parse_size("size", text) for text in written] == sizes
    assert [show_size(size) for size in (7, 1536, 139 << 30)] == ["7 bytes", "1.50 KiB", "139.00 GiB"]
    with pytest.raises(ConfigError, match=r"size: found '-1GB'; .* 139GiB"):
        parse_size("size", "-1GB")


@pytest.mark.parametrize(
    "asked",
    [
        ("plan", "~nosuchuser/m"),
        ("doctor", "~nosuchuser/m"),
        ("pull", "~nosuchuser/m"),
        ("generate", "hi", "--trace", "~nosuchuser/trace.json"),
    ],
)
def test_a_home_that_the_machine_does_not_know_is_a_path_that_is_not_there(asked):
    """`Path.expanduser` raises `RuntimeError` for it."""
    result = run(*asked)
    assert result.exit_code in (1, 2), result.output
    assert "unexpected" not in result.output


@pytest.mark.parametrize("read", [load_keys, read_config])
def test_a_servers_file_in_a_home_that_the_machine_does_not_know_is_refused(read):
    with pytest.raises(ConfigError, match="cannot be read"):
        read("~nosuchuser/file")


def test_a_user_without_a_home_has_no_history(monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as with a number that no account has
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_directory() is None


@pytest.mark.parametrize("size", ["0B", "2000TiB", f"{10**20}GiB", f"{'9' * 400}GiB", f"{'9' * 5000}GiB"])
@pytest.mark.parametrize("flag", ["--gpu-memory", "--kv-memory-bytes"])
def test_a_size_that_no_machine_has_is_refused_in_words(flag, size):
    result = run("plan", "embedded", flag, size)
    assert result.exit_code == 2, result.output
    assert f"{flag}: found" in result.output


def test_a_size_is_read_to_the_byte():
    assert parse_size("size", f"{2**53 + 1}B") == 2**53 + 1


def test_a_size_without_a_unit_is_refused_where_it_is_text():
    with pytest.raises(ConfigError, match=r"kv_memory_bytes: found '24'; .* Write 24GiB"):
        EngineConfig(kv_memory_bytes="24")
    assert EngineConfig(kv_memory_bytes="24MiB") == EngineConfig(kv_memory_bytes=24 << 20)


def test_what_gave_way_is_logged_in_flags(caplog):
    """A context that nobody asked for is shorter than the model's, and the line says which flags choose it."""
    result = run("generate", "x", "--max-tokens", "1", "--kv-memory-bytes", "2MiB", "--enforce-eager")
    assert result.exit_code == 0, result.output
    assert "--max-model-len" in caplog.text
    assert "max_model_len" not in caplog.text


def test_errors_name_flags_and_leave_other_words_alone():
    settings = engine("device", "memory").settings
    message = "device: found 'x'; the device of max_model_len, config.max_model_len and 'max_model_len' is seed."
    wanted = "--device: found 'x'; the device of --max-model-len, config.max_model_len and 'max_model_len' is seed."
    assert in_flags(message, settings) == wanted
    assert in_flags("raise kv_memory_bytes to 77.", settings) == "raise --kv-memory-bytes to 77B."


def test_a_terminal_gets_no_escape_sequences():
    screen = io.StringIO()
    Screen(file=screen, force_terminal=True, color_system=None).show("a\x1b[2Jb\n")
    assert screen.getvalue() == "a[2Jb\n"


def test_how_steps_ran_names_the_reason_of_eager_ones():
    modes = {"full: a captured size fits": 4, "full: a size fits and is captured on first use": 1}
    assert how_it_ran(modes) == "steps: 5 full graph, 1 captured on first use"
    assert how_it_ran({"eager: graphs are off": 3}) == "steps: 3 eager (graphs are off)"


def test_plan_of_a_hub_model_fetches_its_config_alone(monkeypatch, tmp_path):
    fetched = []

    def fetch(repo, name, *, revision, local_files_only):
        fetched.append((repo, name))
        shutil.copy(Path(resolve_model_name("embedded")) / "config.json", tmp_path)
        return str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **kwargs: pytest.fail("weights"))
    result = run("plan", "owner/model", "--gpu-memory", "1GiB")
    assert result.exit_code == 0, result.output
    assert fetched == [("owner/model", "config.json")]
    assert "owner/model on a GPU with 1.00 GiB" in result.stdout


def test_weights_are_counted_without_being_made():
    description = describe_model(resolve_model_name("embedded"))
    with LLM() as llm:
        decoder = llm.engine.worker.model.decoder
        loaded = sum(parameter.nbytes for parameter in decoder.parameters())
        assert num_weight_bytes(description.spec, decoder.dtype) == loaded


@pytest.mark.parametrize(("seqs", "tokens"), [("2", "2"), ("1", "1"), ("1", "3")])
def test_audit_of_the_embedded_model_is_clean(seqs, tokens):
    result = run("audit", "--max-num-seqs", seqs, "--max-num-batched-tokens", tokens, "--max-model-len", "32", "--json")
    assert result.exit_code == 0, result.output
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert [report["name"] for report in reports] == ["decode, greedy", "decode, drawn", "prefill"]
    assert all(report["ok"] and report["graphs"] for report in reports)


def test_audit_with_findings_shows_them_and_exits_1(monkeypatch):
    finding = Finding(check=Check.TAILS, bucket=4, where="seq_lens", message="row 3 was not written")
    report = Report(name="decode", findings=[finding])
    report.checked[Check.TAILS] = 1
    monkeypatch.setattr(audit_command, "audit_model", lambda model, config: [report])
    result = run("audit")
    assert result.exit_code == 1
    assert "row 3 was not written" in result.stdout
    assert "1 findings" in result.stdout


def test_doctor_names_the_machine_and_its_defaults():
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for part in ("CPU", "memory", "torch", "tokenizers", "Defaults here", "Traps"):
        assert part in result.stdout


def test_doctor_tells_the_sizes_an_engine_takes():
    with LLM() as llm:
        told = {row[0].strip(): row[1] for row in default_rows(llm.engine.worker.device)}
        assert told["max_num_seqs"] == str(llm.config.max_num_seqs)
        assert told["max_num_batched_tokens"] == str(llm.config.max_num_batched_tokens)
    on_gpu = {row[0].strip(): row[1] for row in default_rows(torch.device("cuda"))}
    assert (on_gpu["max_num_seqs"], on_gpu["max_num_batched_tokens"]) == ("256", "2,048")


def test_doctor_tells_the_backends_a_worker_has():
    """The defaults are stated by hand; this is what keeps them true."""
    with LLM() as llm:
        worker = llm.engine.worker
        told = {row[0].strip(): row[1] for row in default_rows(worker.device)}
        assert told["attention"] == type(worker.model.backend).__name__
        assert told["graphs"] == type(worker.decode.backend).__name__


def test_doctor_finds_the_traps_there_are():
    bare = Machine(cuda_build=None, gpus=(), environment={"TRITON_INTERPRET": "1"})
    good = Machine(cuda_build="13.0", gpus=("H200",), environment={})
    assert [row[0].strip() for row in traps(bare)] == [
        "torch without CUDA",
        "no CUDA device",
        "half precision",
        "TRITON_INTERPRET",
    ]
    assert traps(good) == []


INTERRUPTED_COMMANDS = [
    ("generate", "The whale", "--max-tokens", "1000", "--temperature", "0", "--seed", "1"),
    ("bench", "throughput", "--num-prompts", "2000"),
    ("bench", "latency", "--num-iters", "100000"),
    ("audit", "--max-num-batched-tokens", "2000"),
]


@pytest.mark.parametrize("command", INTERRUPTED_COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_interrupting_leaves_with_130_and_no_traceback(command, tmp_path):
    """The engine is at work when the signal comes: the first step or capture leaves a mark."""
    code = (
        # A shell's background jobs, and whatever they start, ignore the signal.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from playhead.graph.runner import GraphRunner\n"
        "run = GraphRunner.prepare\n"
        "def marked(*args, **kwargs): print('at work', flush=True); return run(*args, **kwargs)\n"
        "GraphRunner.prepare = marked\n"
        "from playhead.cli.entry import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_interrupting_the_import_is_quiet_too():
    code = (
        "import builtins; from playhead.cli.entry import main; load = builtins.__import__\n"
        "def interrupted(name, *args, **kwargs):\n"
        "    if name == 'torch': raise KeyboardInterrupt\n"
        "    return load(name, *args, **kwargs)\n"
        "builtins.__import__ = interrupted; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.strip()) == (130, "")


@pytest.mark.real
def test_chat_sends_the_whole_conversation():
    path = os.environ.get("PLAYHEAD_SMOLLM2_GGUF")
    if path is None or not Path(path).is_file():
        pytest.skip("PLAYHEAD_SMOLLM2_GGUF names no file")
    lines = ["My name is Ada.", "What is my name?"]
    args = ("chat", "--model", path, "--temperature", "0", "--max-tokens", "8")
    result = run(*args, stdin="\n".join(lines))
    assert result.exit_code == 0, result.output
    history: list[dict[str, str]] = []
    wanted = ""
    with LLM(path, EngineConfig(max_model_len=4096, max_num_seqs=1)) as llm:
        for line in lines:
            history.append({"role": "user", "content": line})
            params = SamplingParams(temperature=0, max_tokens=8)
            answer = llm.chat(history, params)[0].outputs[0].text
            assert [output.outputs[0].text for output in llm.chat_stream(history, params)][-1] == answer
            history.append({"role": "assistant", "content": answer})
            wanted += answer.strip() + "\n"
    assert result.stdout == wanted
