"""How much memory this process can still have: the machine's, or what a control group (a container) leaves of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class GroupFiles(NamedTuple):
    """What one version of control groups calls its files, and the line of `memory.stat` with file pages it can drop."""

    mount: str
    limit: str
    use: str
    droppable: str


VERSION_1 = GroupFiles("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = GroupFiles("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def free_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that Linux can give to this process without swapping. Other systems: half of what the machine has.

    Counted are MemAvailable of /proc/meminfo and, for the process's control group and each one around it, the limit
    less what is in use. A group's use includes cached files; those it would drop first are free.
    """
    lines = _lines(root / "proc/meminfo")
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    free = available[0] if available else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([free, *_left_in_groups(root)])


def _left_in_groups(root: Path) -> Iterator[int]:
    for files, group in _groups(root):
        top = root / files.mount
        for directory in [top / group, *(top / group).parents]:
            left = _left_in_group(directory, files)
            if left is not None:
                yield left
            if directory == top:
                break


def _groups(root: Path) -> Iterator[tuple[GroupFiles, str]]:
    """The control groups that count this process's memory; the outermost if the system does not say."""
    found = False
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # A process that was moved in from outside a container sees "/../.."; the container's own limit is at the top.
        group = "" if ".." in path else path.lstrip("/")
        if number == "0" or "memory" in controllers.split(","):
            found = True
            yield (VERSION_2 if number == "0" else VERSION_1), group
    if not found:
        yield VERSION_2, ""
        yield VERSION_1, ""


def _left_in_group(directory: Path, files: GroupFiles) -> int | None:
    limit, use = _lines(directory / files.limit), _lines(directory / files.use)
    if not limit or not use or not limit[0].isdecimal() or not use[0].isdecimal():
        return None  # "max", or no such group
    droppable = [
        int(words[1])
        for words in map(str.split, _lines(directory / "memory.stat"))
        if len(words) == 2 and words[0] == files.droppable and words[1].isdecimal()
    ]
    return max(0, int(limit[0]) - max(0, int(use[0]) - sum(droppable)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
