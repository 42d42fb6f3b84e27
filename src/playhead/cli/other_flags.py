"""Flags of vLLM's and SGLang's servers that no command here has, each with what to do instead. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from playhead.cli.command import in_flags
from playhead.engine.config import ENGINE_SETTINGS
from playhead.engine.foreign import FOREIGN_SETTINGS

NO_TEXTS = "Leave it out: requests are logged without their texts."
OTHER_FLAGS: Mapping[str, str] = {
    **dict.fromkeys(("-m", "--model", "--model-path"), "The model stands without a flag."),
    **dict.fromkeys(("--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"), NO_TEXTS),
    **dict.fromkeys(("--enable-auto-tool-choice", "--tool-call-parser"), "Use --tool-format, or leave it out."),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile"), "Put a proxy in front of the server."),
    "--api-key": "Write the key into a file: --api-key-file PATH.",
    "--enable-prefix-caching": "Leave it out: prompts are kept unless --no-enable-prefix-caching is given.",
    "--reasoning-parser": "Leave it out: the chat template says how a model reasons.",
    "--uvicorn-log-level": "Use --log-level.",
}


def instead_of(flag: str) -> str | None:
    """What to do instead of a flag that there is not. None for a flag that neither vLLM nor SGLang has.

    "--kv-cache-dtype" gives "Playhead keeps KV in the model's dtype."
    """
    setting = FOREIGN_SETTINGS.get(flag.removeprefix("--").replace("-", "_"))
    if flag in OTHER_FLAGS or setting is None:
        return OTHER_FLAGS.get(flag)
    return in_flags(setting.why, ENGINE_SETTINGS) or "Leave it out: it has no effect here."
