"""L8: what a mount needs of the machine: each obstacle, and none where a mount is possible."""

from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.filesystem.preflight import Machine, examine, obstacle

PLACE = Path("/place")
USER = Machine(
    may_mount=False,
    may_gain_rights=True,
    program=Path("/bin/fusermount3"),
    may_run_program=True,
    is_program_set_uid=True,
    may_write_to_mountpoint=True,
    may_allow_other=True,
)


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"program": None}, "fusermount3 is not installed", "fuse3"),
        ({"may_run_program": False}, "/bin/fusermount3 may not be executed", "chmod"),
        ({"is_program_set_uid": False}, "/bin/fusermount3 is not set-uid root", "chmod u+s /bin/fusermount3"),
        ({"may_gain_rights": False}, "Operation not permitted", "--cap-add SYS_ADMIN"),
        (
            {"may_write_to_mountpoint": False},
            "the user has no write access",
            "of your own",
        ),
        ({"may_allow_other": False}, "--allow-other takes root, or user_allow_other", "/etc/fuse.conf"),
    ],
)
def test_each_obstacle_is_named_and_is_none_to_who_may_mount(
    change: dict[str, object], message: str, hint: str
) -> None:
    machine = replace(USER, **change)  # type: ignore[arg-type]
    error = obstacle(machine, PLACE, allow_other=True)
    assert error is not None
    assert message in str(error)
    assert hint in error.hint
    assert obstacle(replace(machine, may_mount=True), PLACE, allow_other=True) is None


def test_a_user_with_fusermount3_may_mount() -> None:
    assert obstacle(USER, PLACE, allow_other=True) is None
    assert obstacle(replace(USER, may_allow_other=False), PLACE, allow_other=False) is None


@pytest.mark.fuse
def test_this_machine_is_found_able(tmp_path: Path) -> None:
    assert obstacle(examine(tmp_path), tmp_path, allow_other=True) is None
