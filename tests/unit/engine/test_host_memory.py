"""Free memory is what this process can have: a container's limit counts, files it would drop do not."""

from __future__ import annotations

import pytest

from playhead.engine.host_memory import free_host_bytes

MIB = 1 << 20


def machine(root, **files):
    """A root with these files; a name's double underscores are slashes."""
    contents = {"proc__meminfo": f"MemTotal: {9000 << 10} kB\nMemAvailable:    {5000 << 10} kB\n", **files}
    for name, content in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return free_host_bytes(root) // MIB


def test_a_machine_without_groups_has_what_linux_says(tmp_path):
    assert machine(tmp_path) == 5000


def test_a_limit_of_max_is_none(tmp_path):
    files = {"sys__fs__cgroup__memory.max": "max\n", "sys__fs__cgroup__memory.current": "1000\n"}
    assert machine(tmp_path, **files) == 5000


def test_a_containers_limit_counts(tmp_path):
    files = {"sys__fs__cgroup__memory.max": f"{4000 * MIB}\n", "sys__fs__cgroup__memory.current": f"{1000 * MIB}\n"}
    assert machine(tmp_path, **files) == 3000


def test_files_that_a_group_would_drop_are_free(tmp_path):
    """Reading a checkpoint fills the group with cached files."""
    files = {
        "sys__fs__cgroup__memory.max": f"{4000 * MIB}\n",
        "sys__fs__cgroup__memory.current": f"{3900 * MIB}\n",
        "sys__fs__cgroup__memory.stat": f"anon {100 * MIB}\ninactive_file {3000 * MIB}\n",
    }
    assert machine(tmp_path, **files) == 3100


@pytest.mark.parametrize("place", ["", "__jobs", "__jobs__mine"])
def test_the_limit_of_every_group_around_the_process_counts(tmp_path, place):
    files = {
        "proc__self__cgroup": "0::/jobs/mine\n",
        f"sys__fs__cgroup{place}__memory.max": f"{2000 * MIB}\n",
        f"sys__fs__cgroup{place}__memory.current": "0\n",
    }
    assert machine(tmp_path, **files) == 2000


def test_groups_of_the_first_version_count(tmp_path):
    files = {
        "proc__self__cgroup": "4:memory:/mine\n3:cpuset:/\n0::/\n",
        "sys__fs__cgroup__memory__mine__memory.limit_in_bytes": f"{1000 * MIB}\n",
        "sys__fs__cgroup__memory__mine__memory.usage_in_bytes": f"{300 * MIB}\n",
        "sys__fs__cgroup__memory__mine__memory.stat": f"total_inactive_file {100 * MIB}\n",
    }
    assert machine(tmp_path, **files) == 800


def test_a_process_from_outside_its_container_has_the_containers_limit(tmp_path):
    files = {
        "proc__self__cgroup": "0::/../../outside\n",
        "sys__fs__cgroup__memory.max": f"{700 * MIB}\n",
        "sys__fs__cgroup__memory.current": "0\n",
    }
    assert machine(tmp_path, **files) == 700
