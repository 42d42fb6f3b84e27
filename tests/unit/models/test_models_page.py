"""`docs/models.md` has a row for every family, and says which GGUF architecture holds it."""

from __future__ import annotations

import re
from pathlib import Path

from playhead.models.checkpoint.gguf_architectures import ARCHITECTURES
from playhead.models.families import FAMILIES

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| yes[^|]* \| (?:as )?(?:`(\w+)`|no) \|", PAGE, flags=re.MULTILINE))


def test_every_family_has_its_row():
    assert sorted(ROWS) == sorted(family.model_type for family in FAMILIES)


def test_every_row_says_which_gguf_architecture_holds_it():
    said = {
        architecture: name for name, architecture in ROWS.items() if architecture and name not in ("mistral", "gemma3")
    }
    assert said == {name: architecture.model_type for name, architecture in ARCHITECTURES.items()}
