"""docs/from-vllm.md says what the code does: its tables are made from the code, its counts are counted."""

from __future__ import annotations

import re
from pathlib import Path

from playhead.engine.config import ENGINE_SETTINGS, SPELLINGS
from playhead.engine.foreign import FOREIGN_SETTINGS
from playhead.inputs import REFUSED_KEYWORDS, UNREAD_KEYS
from playhead.sampling_params import PARAMETERS

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "from-vllm.md"


def spellings() -> list[str]:
    """One row per setting that has another engine's name too."""
    rows = []
    for declared in ENGINE_SETTINGS:
        others = [name for name, (field, _) in SPELLINGS.items() if field == declared.name and name != declared.name]
        if others:
            rows.append(f"| `{declared.name}` | {', '.join(f'`{name}`' for name in others)} |")
    return rows


def foreign() -> list[str]:
    """One row per setting that Playhead does not have."""
    rows = []
    for name, setting in FOREIGN_SETTINGS.items():
        if setting.idle is None:
            rows.append(f"| `{name}` | anything | it has no effect here |")
        else:
            idle = ", ".join(f"`{value!r}`" for value in (None, *setting.idle))
            rows.append(f"| `{name}` | {idle} | {setting.why} |")
    return rows


def calls() -> list[str]:
    rows = [f"| `generate({name}=...)` | {why} |" for name, why in REFUSED_KEYWORDS.items()]
    return rows + [f'| a prompt with `"{key}"` | {why[0].upper() + why[1:]}. |' for key, why in UNREAD_KEYS.items()]


def test_every_row_made_from_the_code_stands_in_the_document():
    lines = set(DOC.read_text().splitlines())
    assert [row for row in (*spellings(), *foreign(), *calls()) if row not in lines] == []


def test_the_document_has_no_row_that_the_code_does_not_make():
    text = DOC.read_text()
    made = {*spellings(), *foreign(), *calls()}
    sections = re.findall(r"<!-- made from the code -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert len(sections) == 3
    rows = [
        line for section in sections for line in section.splitlines() if line.startswith("| `") or "| a prompt" in line
    ]
    assert [row for row in rows if row not in made] == []


def test_the_counts_are_those_of_the_scripts():
    found = re.search(r"(\d+) scripts written for vLLM's offline API and (\d+) for SGLang's", DOC.read_text())
    assert found is not None
    scripts = [len(list((ROOT / "tests" / "compat" / name).glob("*.py"))) for name in ("vllm", "sglang")]
    assert [int(count) for count in found.groups()] == scripts


def test_every_sampling_parameter_is_named():
    text = DOC.read_text()
    assert [name for name in PARAMETERS if f"`{name}`" not in text] == []
