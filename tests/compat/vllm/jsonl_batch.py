"""Read requests from JSON lines, write answers as JSON lines."""

import json
import tempfile
from pathlib import Path

from playhead import LLM, SamplingParams

REQUESTS = [
    {"id": "a", "prompt": "My kingdom for", "max_tokens": 4},
    {"id": "b", "prompt": "The quality of mercy", "max_tokens": 6},
    {"id": "c", "prompt": "Tomorrow, and tomorrow,", "max_tokens": 8},
]


def run(model: str, source: Path, target: Path) -> None:
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    llm = LLM(model=model, max_model_len=128, max_num_seqs=2)
    params = [SamplingParams(temperature=0, max_tokens=row["max_tokens"], ignore_eos=True) for row in rows]
    outputs = llm.generate([row["prompt"] for row in rows], params, use_tqdm=True)
    with target.open("w") as file:
        for row, output in zip(rows, outputs, strict=True):
            usage = {"prompt": len(output.prompt_token_ids or []), "output": len(output.outputs[0].token_ids)}
            answer = {"id": row["id"], "text": output.outputs[0].text, "usage": usage}
            file.write(json.dumps(answer) + "\n")


def main(model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps(request) + "\n" for request in REQUESTS))
        run(model, source, target)
        answers = [json.loads(line) for line in target.read_text().splitlines()]
    print(answers)
    assert [answer["id"] for answer in answers] == ["a", "b", "c"]
    assert [answer["usage"]["output"] for answer in answers] == [4, 6, 8]


if __name__ == "__main__":
    main("embedded")
