"""What an engine has done since it started, counted. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace


@dataclass(slots=True, kw_only=True)  # mutable: counters
class EngineStats:
    """What the engine has done since it started. `modes` counts steps by how and why they ran.

    A wasted row is one that was computed for a request which turned out to have ended. `num_failed_requests` ended with
    an error of their own. `num_violations` is what the ledger found wrong in the account of KV pages: each is a bug.
    """

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_wasted_rows: int = 0
    num_failed_requests: int = 0
    num_violations: int = 0
    modes: dict[str, int] = field(default_factory=dict)

    def copy(self) -> EngineStats:
        """The counters as they are now."""
        return replace(self, modes=dict(self.modes))

    def since(self, before: EngineStats) -> EngineStats:
        """What was counted after an earlier copy."""
        then = asdict(before)
        counts = {name: count - then[name] for name, count in asdict(self).items() if name != "modes"}
        modes = {mode: count - before.modes.get(mode, 0) for mode, count in self.modes.items()}
        return EngineStats(**counts, modes={mode: count for mode, count in modes.items() if count})
