"""`playhead bench serve` measures a server it is given, writes what it found, and `bench compare` reads it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from playhead.cli.main import app
from playhead.load.results import Sample, read_results
from playhead.load.scrape import read_metrics, totals
from tests.serve.made_results import made_requests, made_result, made_run
from tests.serve.small_server import Visit, in_a_thread, stream_of, whole

METRICS = """\
# HELP vllm:num_requests_running Sequences that run.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a \\"quoted\\" name"} 3.0
playhead_steps_total{mode="full",model_name="m",reason="a, b"} 60.0
playhead_steps_total{mode="eager",model_name="m",reason="c} d"} 20.0
playhead_eager_steps_total{model_name="m",reason="c} d"} 20.0
playhead_kv_bytes{group="full",model_name="m",state="held"} 4096.0
playhead_kv_bytes{group="full",model_name="m",state="free"} 1.0
process_cpu_seconds_total 1.5
something broken
vllm:kv_cache_usage_perc{model_name="m"} NaN and more
"""


async def reply(visit: Visit) -> None:
    method, path = visit.head.split()[:2]
    if path == "/v1/models":
        await visit.send(whole(200, {"data": [{"id": "the-model"}]}))
    elif path == "/metrics":
        await visit.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(METRICS)}\r\n\r\n{METRICS}".encode())
    elif json.loads(visit.body).get("max_tokens") == 13:
        await visit.send(whole(429, {"error": {"code": "queue_full"}}))
    else:
        asked = json.loads(visit.body)
        assert method == "POST"
        await visit.send(stream_of(["x"] * asked["max_tokens"]))


def bench(*args: str) -> Result:
    return CliRunner().invoke(app, ["bench", *args])


def test_a_server_is_measured_and_its_figures_are_printed_and_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    files = [tmp_path / "a.json", tmp_path / "a.html"]
    with in_a_thread(reply) as server:
        result = bench(
            *("serve", "--base-url", f"127.0.0.1:{server.port}", "--key-variable", "SOME_KEY", "--rate", "200,inf"),
            *("--num-prompts", "6", "--input-len", "4", "--output-len", "5"),
            *("--json", str(files[0]), "--html", str(files[1])),
        )
    assert result.exit_code == 0, result.output
    assert result.stdout.count("6 finished") == 2
    assert "time to first token, ms" in result.stdout
    written = read_results(files[0])
    assert (written.model, [run.rate for run in written.runs]) == ("the-model", [200.0, None])
    assert [one.num_tokens for one in written.runs[0].requests] == [5] * 6
    asked = [visit for visit in server.visits if visit.head.startswith("POST")]
    assert len(asked) == 12
    assert all("Authorization: Bearer sk-secret\r\n" in visit.head for visit in asked)
    assert {json.loads(visit.body)["model"] for visit in asked} == {"the-model"}
    assert all("sk-secret" not in text for text in (result.output, *(path.read_text() for path in files)))
    assert files[1].read_text().startswith("<!DOCTYPE html>")


def test_chat_goes_to_its_own_route(tmp_path):
    with in_a_thread(reply) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        result = bench("serve", "--base-url", url, "--model", "m", "--endpoint", "chat", "--num-prompts", "1")
    assert result.exit_code == 0, result.output
    assert [visit.head.split()[1] for visit in server.visits if visit.body] == ["/v1/chat/completions"]


def test_a_server_that_answers_nothing_gives_the_exit_code_1():
    with in_a_thread(reply) as server:
        result = bench("serve", "--base-url", server.target.url, "--num-prompts", "3", "--output-len", "13")
    assert result.exit_code == 1
    assert "3 refused" in result.stdout


def test_a_server_that_is_not_there_is_named():
    with in_a_thread(reply) as server:
        pass
    result = bench("serve", "--base-url", server.target.url)
    assert result.exit_code == 2
    assert "/v1/models: unreachable: ConnectionRefusedError. Check --base-url" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--rate", "fast"), "--rate: found 'fast'"),
        (("--lengths", "long"), "--lengths: found 'long'; wanted one of fixed, uniform, lognormal"),
        (("--num-prompts", "0"), "--num-prompts: found 0"),
        (("--json", "/no/such/place/x.json"), "--json: found no directory"),
        (("--duration", "3"), "--duration: it needs a finite --rate"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_sent(args, said):
    result = bench("serve", "--base-url", "http://127.0.0.1:9", *args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_metrics_are_read_whatever_their_labels_hold():
    assert read_metrics(METRICS) == {
        "running": 3.0,
        "steps": 80.0,
        "eager_steps": 20.0,
        "kv_held_bytes.full": 4096.0,
    }


def test_totals_are_of_what_happened_between_the_first_and_the_last_sample():
    samples = [
        Sample(at_s=0, values={"steps": 10.0, "eager_steps": 10.0, "kv_usage": 0.9, "kv_held_bytes.a": 5.0}),
        Sample(at_s=1, values={"steps": 30.0, "eager_steps": 15.0, "kv_usage": 0.2, "kv_held_bytes.a": 7.0}),
    ]
    found = totals(samples)
    assert found["graph_hit_share"] == pytest.approx(0.75)
    assert (found["max_kv_usage"], found["max_kv_held_bytes"]) == (0.9, 7.0)
    assert totals(samples[:1]) == {}


def test_compare_prints_ratios_and_the_exit_code_says_whether_something_is_worse(tmp_path):
    made_result(made_run(made_requests(1))).write(tmp_path / "a.json")
    made_result(made_run(made_requests(2, slow=2.0)), seed=5).write(tmp_path / "b.json")
    worse = bench("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    better = bench("compare", str(tmp_path / "b.json"), str(tmp_path / "a.json"), "--json")
    assert (worse.exit_code, better.exit_code) == (1, 0)
    assert "not the same load: seed is 0 and 5" in worse.stdout
    assert "worse" in worse.stdout
    rows = {row["name"]: row for row in json.loads(better.stdout)}
    assert rows["first token p50, ms"]["verdict"] == "better"
    assert rows["first token p50, ms"]["ratio"] == pytest.approx(0.5, rel=0.15)


def test_compare_refuses_other_files(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    result = bench("compare", str(tmp_path / "a.json"), str(tmp_path / "none.json"))
    assert result.exit_code == 2
    assert "a.json: found another format" in result.stderr
