"""What the system tells of memory, of control groups of either version, and what is said where it tells nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safepoint.config.memory import Allowance, allowance, resident

GIB = 1 << 30
EVENTS = "low 0\nhigh 0\nmax 12\noom 2\noom_kill {}\noom_group_kill 0\n"
NO_LIMIT = str(0x7FFFFFFFFFFFF000)  # of the first version


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine of 16 GiB on which the kernel has killed seven processes."""
    write(tmp_path, "proc/meminfo", f"MemTotal:       {16 * GIB // 1024} kB\nMemFree:         9 kB\n")
    write(tmp_path, "proc/vmstat", "pgfault 12\noom_kill 7\n")
    return tmp_path


def write(root: Path, name: str, text: object) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(f"{text}")


def test_a_machine_without_groups_allows_what_it_has(machine: Path) -> None:
    assert allowance(root=machine) == Allowance(16 * GIB, 7)


def test_a_container_allows_what_its_group_may_hold(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/\n")
    write(machine, "sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    write(machine, "sys/fs/cgroup/memory.events", EVENTS.format(3))

    assert allowance(root=machine) == Allowance(2 * GIB, 3)


def test_a_group_above_binds_and_the_nearest_counts(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/system.slice/worker.service\n")
    write(machine, "sys/fs/cgroup/system.slice/memory.max", 3 * GIB)
    write(machine, "sys/fs/cgroup/system.slice/memory.events", EVENTS.format(9))
    write(machine, "sys/fs/cgroup/system.slice/worker.service/memory.max", "max\n")
    write(machine, "sys/fs/cgroup/system.slice/worker.service/memory.events", EVENTS.format(1))

    assert allowance(root=machine) == Allowance(3 * GIB, 1)


@pytest.mark.parametrize("place", ["sys/fs/cgroup/memory/docker/abc", "sys/fs/cgroup/memory"])
def test_groups_of_the_first_version_are_read_where_they_are_mounted(machine: Path, place: str) -> None:
    write(machine, "proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n")
    write(machine, f"{place}/memory.limit_in_bytes", f"{GIB}\n")
    write(machine, f"{place}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")

    assert allowance(root=machine) == Allowance(GIB, 5)


def test_a_group_without_a_limit_allows_what_the_machine_has(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "4:memory:/\n")
    write(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT)

    assert allowance(root=machine) == Allowance(16 * GIB, 7)


def test_a_system_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "rubbish\n::\n")

    assert allowance(root=tmp_path) == Allowance()
    assert resident(1, root=tmp_path) is None


def test_a_process_holds_what_its_status_says(tmp_path: Path) -> None:
    write(tmp_path, "proc/7/status", "Name:\tpython\nVmHWM:\t   90 kB\nVmRSS:\t   80 kB\nRssAnon:\t   70 kB\n")
    write(tmp_path, "proc/8/status", "Name:\tzombie\nState:\tZ (zombie)\n")

    assert resident(7, root=tmp_path) == 80 * 1024
    assert resident(8, root=tmp_path) is None


def test_this_process_holds_something_of_what_it_may() -> None:
    assert 0 < (resident(os.getpid()) or 0) < (allowance().limit or 0)
