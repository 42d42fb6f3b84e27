"""A notebook, run as Jupyter runs it: inside an event loop that is already running."""

from __future__ import annotations

import json

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = {
    "generate": """
import json

from playhead import LLM, AsyncEngine, SamplingParams

params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
llm = LLM("embedded", max_model_len=64, max_num_seqs=2, kv_memory_bytes=1 << 23, graph_mode="eager")
outputs = llm.generate(["The whale", "Call me"], params, use_tqdm=True)
print(json.dumps([output.outputs[0].text for output in outputs]))
""",
    "stream": """
*_, last = llm.stream("The whale", params)
print(last.outputs[0].text == outputs[0].outputs[0].text)
""",
    "await": """
async def text(engine, prompt):
    async for output in engine.generate(prompt, params):
        pass
    return output.outputs[0].text

engine = AsyncEngine.of(llm.engine)
print(json.dumps([await text(engine, "The whale"), await text(engine, "Call me")]))
engine.shutdown()
""",
    "look": "llm",
}


@pytest.fixture(scope="module")
def cells():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()])
    NotebookClient(notebook, kernel_name="python3").execute()
    return dict(zip(CELLS, notebook.cells, strict=True))


def printed(cell) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


def test_a_call_that_blocks_works_in_a_notebook(cells):
    texts = json.loads(printed(cells["generate"]))
    assert len(texts) == 2
    assert all(texts)
    assert printed(cells["stream"]) == "True\n"


def test_an_event_loop_that_runs_already_can_wait_for_an_engine(cells):
    assert printed(cells["await"]) == printed(cells["generate"])


def test_a_bar_is_shown_and_stays(cells):
    (shown,) = (output for output in cells["generate"].outputs if output.output_type == "display_data")
    assert "2/2" in shown.data["text/plain"]
    assert "██" in shown.data["text/html"]


def test_a_notebook_shows_what_an_llm_is(cells):
    (shown,) = cells["look"].outputs
    assert shown.data["text/plain"].startswith("LLM('embedded'")
