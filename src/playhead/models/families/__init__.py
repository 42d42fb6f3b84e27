"""The families, one file each. A new one is a new file and its import here."""

from __future__ import annotations

from playhead.models.families.cohere import COHERE
from playhead.models.families.cohere2 import COHERE2
from playhead.models.families.exaone4 import EXAONE4
from playhead.models.families.gemma import GEMMA
from playhead.models.families.gemma2 import GEMMA2
from playhead.models.families.gemma3 import GEMMA3, GEMMA3_TEXT
from playhead.models.families.glm4 import GLM4
from playhead.models.families.gpt_oss import GPT_OSS
from playhead.models.families.granite import GRANITE
from playhead.models.families.llama import LLAMA
from playhead.models.families.mistral import MINISTRAL, MISTRAL
from playhead.models.families.olmo2 import OLMO2
from playhead.models.families.olmo3 import OLMO3
from playhead.models.families.phi3 import PHI3
from playhead.models.families.qwen import QWEN2, QWEN3
from playhead.models.families.smollm3 import SMOLLM3
from playhead.models.family import Family

FAMILIES: tuple[Family, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Family))
