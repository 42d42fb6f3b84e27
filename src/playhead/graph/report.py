"""What an audit found, as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Check(StrEnum):
    """The promises an audit tests."""

    OWNERSHIP = "every tensor read is declared"
    WRITES = "nothing undeclared is written"
    EXTENT = "captured reads stay inside what a fill writes"
    TAILS = "every fill writes its padding"
    PADDED_ROWS = "padded rows stay in the sink, step after step"
    PADDED_VALUES = "what padded rows hold changes no other row"
    UNREAD_TAILS = "tails claimed unread change nothing"
    REPLAY_TWICE = "replaying twice gives the same"
    REPLAY_VS_EAGER = "replay equals eager, bit for bit"
    TWO_CAPTURES = "captures on different values are the same graph"
    POINTERS = "kernels were given no foreign address"


@dataclass(slots=True, kw_only=True)  # mutable: an audit adds to it
class Report:
    """Everything one audit looked at. `checked` counts comparisons, so that an audit that looked at nothing shows."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    checked: Counter[Check] = field(default_factory=Counter)
    graphs: list[GraphFacts] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No finding, and something was looked at."""
        return not self.findings and self.checked.total() > 0

    def text(self) -> str:
        """A page for a terminal: sizes, then each promise with the number of comparisons and what broke it."""
        verdict = "clean" if self.ok else f"{len(self.findings)} findings, {self.checked.total()} comparisons"
        lines = [f"audit of {self.name}: {verdict}"]
        for graph in self.graphs:
            lines.append(
                f"  bucket {graph.bucket}: {graph.num_recordings} recordings, {graph.num_nodes} nodes, "
                f"{graph.num_bytes} bytes"
            )
        for check in Check:
            broken = [finding for finding in self.findings if finding.check is check]
            verdict = "FAILED" if broken else "ok" if self.checked[check] else "not run"
            lines.append(f"  {check.value}: {verdict} ({self.checked[check]} comparisons)")
            lines += [f"    bucket {f.bucket}, {f.where}: {f.message}" for f in broken]
        return "\n".join(lines)

    def to_json(self) -> str:
        return json.dumps(
            {
                "name": self.name,
                "ok": self.ok,
                "findings": [{**asdict(f), "check": f.check.name} for f in self.findings],
                "checked": {check.name: self.checked[check] for check in Check},
                "graphs": [asdict(graph) for graph in self.graphs],
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken promise."""

    check: Check
    bucket: int
    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """Size of one captured bucket."""

    bucket: int
    num_recordings: int
    num_nodes: int
    num_bytes: int
