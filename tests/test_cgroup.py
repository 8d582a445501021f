"""The limits of a control group, over hierarchies made in a temporary directory."""

import os
from pathlib import Path

import pytest

from fastfuse import cgroup
from fastfuse.cgroup import available_memory_bytes, cpu_limit, memory_limit_bytes, oom_kills


class Machine:
    def __init__(self, root: Path) -> None:
        self.memberships = root / "self-cgroup"
        self.hierarchies = root / "fs-cgroup"

    def limit(self, memberships: str, files: dict[str, str]) -> int | None:
        self.memberships.write_text(memberships)
        for name, text in files.items():
            file = self.hierarchies / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return memory_limit_bytes(self.memberships, self.hierarchies)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("memberships", "files", "limit"),
    [
        ("0::/jobs/a\n", {"jobs/a/memory.max": "1000\n"}, 1000),
        ("0::/jobs/a\n", {"jobs/a/memory.max": "max\n"}, None),
        # What slows a group down before it is killed counts, too.
        ("0::/jobs/a\n", {"jobs/a/memory.max": "1000\n", "jobs/a/memory.high": "900\n"}, 900),
        ("0::/jobs/a\n", {"jobs/a/memory.max": "1000\n", "jobs/a/memory.high": "max\n"}, 1000),
        # The tighter limit of an ancestor counts.
        ("0::/jobs/a\n", {"jobs/memory.max": "500\n", "jobs/a/memory.max": "1000\n"}, 500),
        # A container sees only its own group, at the root of the mount.
        ("0::/docker/0123abcd\n", {"memory.max": "700\n"}, 700),
        # A group outside the namespace is not followed upwards.
        ("0::/../other\n", {"../other/memory.max": "1\n"}, None),
        # Version 1: the hierarchy of the memory controller alone counts. No limit is one beyond any RAM.
        (
            "5:cpu,cpuacct:/x\n4:hugetlb,memory:/jobs/a\n0::/\n",
            {"memory/jobs/a/memory.limit_in_bytes": "900\n", "cpu/x/memory.limit_in_bytes": "1\n"},
            900,
        ),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 9223372036854771712),
        ("9:name=systemd:/jobs\n", {"jobs/memory.max": "1\n", "memory.max": "1\n"}, None),
        ("nonsense\n\n0::/a\n", {"a/memory.max": "800\n"}, 800),
    ],
)
def test_the_limit_on_memory(machine: Machine, memberships: str, files: dict[str, str], limit: int | None) -> None:
    assert machine.limit(memberships, files) == limit


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path / "absent", tmp_path) is None


def test_a_group_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "self").write_bytes(b"0::/\xff\n")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / os.fsdecode(b"\xff") / "memory.max").write_text("1000")
    assert memory_limit_bytes(tmp_path / "self", tmp_path) == 1000


@pytest.mark.parametrize(
    ("memberships", "files", "limit"),
    [
        ("0::/jobs/a\n", {"jobs/a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/jobs/a\n", {"jobs/a/cpu.max": "max 100000\n"}, None),
        ("0::/jobs/a\n", {"jobs/a/cpu.max": "400000 100000\n", "jobs/cpu.max": "200000 100000\n"}, 2),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "150000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 1.5),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/a\n", {"a/cpu.max": "much\n"}, None),
    ],
)
def test_the_limit_on_cpus(machine: Machine, memberships: str, files: dict[str, str], limit: float | None) -> None:
    machine.limit(memberships, files)
    assert cpu_limit(machine.memberships, machine.hierarchies) == limit


@pytest.mark.parametrize(
    ("memberships", "files", "kills"),
    [
        ("0::/jobs/a\n", {"jobs/a/memory.events": "low 0\noom 4\noom_kill 2\noom_group_kill 1\n"}, 2),
        # A container sees its own group at the root.
        ("0::/docker/0123abcd\n", {"memory.events": "oom_kill 3\n"}, 3),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"}, 5),
        # Before Linux 4.13.
        ("4:memory:/a\n", {"memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),
        ("0::/\n", {"cgroup.controllers": "memory\n"}, None),
    ],
)
def test_the_kills_for_want_of_memory(
    machine: Machine, memberships: str, files: dict[str, str], kills: int | None
) -> None:
    machine.limit(memberships, files)
    assert oom_kills(machine.memberships, machine.hierarchies) == kills


def test_the_limit_of_memory_counts_where_it_is_less_than_the_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": gib // 1024, "SC_PAGE_SIZE": 4096}.__getitem__)
    for limit_bytes, available_bytes in ((None, 4 * gib), (gib, gib), (8 * gib, 4 * gib)):
        monkeypatch.setattr(cgroup, "memory_limit_bytes", lambda limit_bytes=limit_bytes: limit_bytes)
        assert available_memory_bytes() == available_bytes
