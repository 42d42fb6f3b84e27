"""The demo: a captured attention step with a KV write, a padded replay, and the audit, in one screen."""

from __future__ import annotations

from contextlib import nullcontext

from rich.table import Table

from playhead.cli.screen import Screen
from playhead.graph import CaptureReport, Check, Report, StepResult, audit
from playhead.graph.registry import NUM_STAGES
from playhead.graph.shapes import DispatchLimits
from playhead.testing.graph_mutants import STALE_LOC_TAIL
from playhead.testing.toy import ToyRequest
from playhead.testing.toy_runners import ToyRig, toy_rig


def run_demo(screen: Screen, *, broken: bool = False) -> int:
    """Run it. The exit status is 0 if the audit is clean and no other request's KV was touched."""
    with STALE_LOC_TAIL.apply() if broken else nullcontext():
        rig = toy_rig("full", buckets=(1, 2, 4, 8), limits=DispatchLimits(max_padding_ratio=8))
        captured: list[CaptureReport] = []
        rig.runner.capture_all(captured.append)
        screen.print(capture_table(captured))
        untouched = show_shrinking_batch(screen, rig)
        report = audit(rig.runner, rig.model.sample("bs"))
    screen.print(audit_table(report))
    for finding in report.findings[:3]:
        screen.print(f"[red]bucket {finding.bucket}, {finding.where}: {finding.message}")
    screen.print(
        "the graphs read what was declared" if report.ok else "the graphs read values that no step wrote", style="bold"
    )
    return 0 if report.ok and untouched else 1


def capture_table(captured: list[CaptureReport]) -> Table:
    table = Table("size", "nodes", "KiB", "ms", title="1. a 3-layer attention step, captured on the CPU tape")
    for report in captured:
        table.add_row(
            str(report.size), str(report.num_nodes), f"{report.num_bytes / 1024:.0f}", f"{report.seconds * 1e3:.1f}"
        )
    return table


def decode(rig: ToyRig, num_requests: int) -> StepResult:
    """One token for each of the first requests."""
    requests = [ToyRequest(row=1 + i, num_cached=0, tokens=[3 + i]) for i in range(num_requests)]
    return rig.runner.run(rig.model.batch(requests, axis="bs"), raw_bs=num_requests, raw_num_tokens=num_requests)


def show_shrinking_batch(screen: Screen, rig: ToyRig) -> bool:
    """Four requests, then three: the fourth's memory goes to another request, and must not change."""
    for _ in range(NUM_STAGES):
        decode(rig, 4)
    theirs = rig.model.k_cache[:, int(rig.model.table_RL[4, 0])]
    theirs.fill_(77)
    result = decode(rig, 3)
    untouched = bool((theirs == 77).all())
    locs = rig.runner.registry.get_slot("out_cache_loc").slice_for(4, 4).tolist()
    screen.print("2. four requests, then three, replayed in the graph of four", style="italic")
    screen.print(f"   decision: {result.decision.mode}, bucket {result.decision.bucket}: {result.decision.reason}")
    screen.print(f"   locations written: {locs}   (0 is the sink)")
    screen.print(f"   the departed request's KV: {'untouched' if untouched else '[red]overwritten'}")
    return untouched


def audit_table(report: Report) -> Table:
    table = Table("promise", "comparisons", "verdict", title="3. the audit")
    for check in Check:
        found = sum(finding.check is check for finding in report.findings)
        not_run = "needs CUDA" if check is Check.POINTERS else "no claim"
        verdict = f"[red]{found} findings" if found else "[green]holds" if report.checked[check] else f"[dim]{not_run}"
        table.add_row(check.value, str(report.checked[check]), verdict)
    return table
