"""Failures while a real mount lists again: what becomes of the view, and all that the operator sees.

As in tests/test_fault_matrix.py, which has the classes without a reply too, the retry policy says what to expect.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects
from fastfuse.errors import FastfuseError
from fastfuse.filesystem.control import RefreshReport, request_refresh
from fastfuse.s3.failures import Kind
from fastfuse.s3.retry_policy import UNTIL_DEADLINE, attempts
from tests.fault_causes import CAUSES, Cause, untimed
from tests.filesystem.test_supervisor import with_change
from tests.filesystem.waiting import wait_until
from tests.mounting import ENVIRONMENT, Mount, mounted
from tests.semantics.test_metrics import Scrape
from tests.servers import ACCESS_KEY, SECRET_KEY

pytestmark = pytest.mark.fuse

DEADLINE_S = 0.5
LONGEST_PAUSE_S = 0.1
PATIENCE_S = 60.0
BEGINNING = "INFO refreshing s3://bucket/"
# The profile that `Kind.BAD_CONFIGURATION` takes away.
PROFILE = "[profile missing]\n"
KEYS = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
# Each lister looks for credentials anew, and ends soon while the file is there.
CHANGE = """
import os
from fastfuse.filesystem import refresh
from fastfuse.index.listing import page
from fastfuse.s3 import retry_policy
from fastfuse.s3.credentials import CredentialSource
CredentialSource.take = lambda self, found: None
retry_policy.FIRST_PAUSE_S, retry_policy.LONGEST_PAUSE_S = 0.01, {pause_s}
plain = refresh._list
def in_a_hurry(*arguments):
    if os.path.exists({hurry!r}):
        page.LIST_DEADLINE_S = {deadline_s}
    return plain(*arguments)
refresh._list = in_a_hurry
"""


class Refreshed:
    """A mount of one object."""

    def __init__(self, server: LoopbackServer, mount: Mount, directory: Path) -> None:
        self.server, self.mount = server, mount
        self.hurry, self.config = directory / "hurry", directory / "config"

    def begin(self) -> None:
        """Note what the log has and what is counted now."""
        self._known, self._before = len(self.mount.log), Scrape(self.mount.metrics_port())

    def told(self) -> list[str]:
        """Return the lines of the log since then: level and text, without what differs from run to run."""
        lines = self.mount.log[self._known :].splitlines()
        return [untimed(re.sub(r"^\S+ ([A-Z]+) \S+: ", r"\1 ", line)) for line in lines]

    def retries(self, cause: Cause, outcome: str) -> int:
        """Return how many requests were tried again since then, once the refresh is counted with its `outcome`."""
        key, retried = ("refreshes_total", outcome), ("retries_total", cause.failure.cause)
        # The answer comes first.
        wait_until(lambda: Scrape(self.mount.metrics_port())[key] == self._before[key] + 1)
        return Scrape(self.mount.metrics_port())[retried] - self._before[retried]


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refreshed]:
    directory = tmp_path_factory.mktemp("refreshed")
    (directory / "config").write_text(PROFILE + KEYS)
    environment = {name: value for name, value in ENVIRONMENT.items() if "_KEY" not in name}
    environment |= {"AWS_CONFIG_FILE": str(directory / "config"), "AWS_PROFILE": "missing"}
    change = CHANGE.format(hurry=str(directory / "hurry"), deadline_s=DEADLINE_S, pause_s=LONGEST_PAUSE_S)
    with pytest.MonkeyPatch.context() as monkeypatch:
        with_change(monkeypatch, change)
        with (
            LoopbackServer({"bucket": MemoryObjects({"object": b"bytes"})}) as server,
            mounted("s3://bucket", server.endpoint_url, "--metrics-listen", "0", environment=environment) as mount,
        ):
            yield Refreshed(server, mount, directory)


def retry_line(cause: Cause) -> str:
    return "WARNING " + cause.retry_line("page 1 of the listing of 's3://bucket/'")


def named(kind: Kind) -> str:
    return kind.name.lower()


def most(kind: Kind) -> int:
    return attempts(kind, is_read=False)


def is_answered(kind: Kind) -> bool:
    return CAUSES[kind].action is not None


@pytest.mark.parametrize("kind", [kind for kind in Kind if most(kind) > 1 and is_answered(kind)], ids=named)
def test_what_passes_while_a_mount_lists_again_is_told_with_its_end(refreshed: Refreshed, kind: Kind) -> None:
    cause = CAUSES[kind]
    refreshed.begin()
    assert cause.action is not None
    refreshed.server.faults.add(FaultRule(action=cause.action, operation="ListObjectsV2", times=1))
    assert request_refresh(refreshed.mount.path).files == 1
    refreshed.server.faults.clear()
    assert refreshed.retries(cause, "ok") == 1
    report = RefreshReport(added=0, removed=0, replaced=0, files=1, elapsed_s=0.0)
    assert refreshed.told() == [
        BEGINNING,
        retry_line(cause),
        f"INFO answered again after N s: 1 × {cause.detail}; 1 object waited",
        untimed(f"INFO refreshed s3://bucket/: {report}"),
    ]


def assert_refused(here: Refreshed, cause: Cause) -> None:
    """Expect that the refresh fails as the policy says, and that the mount goes on."""
    count, retry_lines = most(cause.kind), [retry_line(cause)] if most(cause.kind) > 1 else []
    deadline_s = DEADLINE_S if count == UNTIL_DEADLINE else None
    expected = cause.command_errors(here.server.endpoint_url, deadline_s)
    began_s = time.monotonic()
    with pytest.raises(FastfuseError) as caught:
        request_refresh(here.mount.path)
    took_s, error = time.monotonic() - began_s, caught.value
    assert (error.exit_code, str(error)) in [(one.exit_code, str(one)) for one in expected]
    view = f"ERROR the view stays as it was: s3://bucket/ was not refreshed: {error}"
    assert here.told() == [BEGINNING, *retry_lines, view]
    retries = here.retries(cause, "failed")
    if deadline_s is not None:
        assert retries > 1
        assert deadline_s - LONGEST_PAUSE_S <= took_s < PATIENCE_S
    else:
        assert retries == count - 1
    assert (here.mount.path / "object").stat().st_size == 5


@pytest.mark.parametrize("kind", [*filter(is_answered, Kind), Kind.NO_CREDENTIALS, Kind.BAD_CONFIGURATION], ids=named)
def test_what_lasts_while_a_mount_lists_again_leaves_the_view_as_it_was(refreshed: Refreshed, kind: Kind) -> None:
    cause = CAUSES[kind]
    if most(kind) == UNTIL_DEADLINE:
        refreshed.hurry.touch()
    refreshed.begin()
    if cause.action is not None:
        refreshed.server.faults.add(FaultRule(action=cause.action, operation="ListObjectsV2"))
    else:
        refreshed.config.write_text(PROFILE if kind is Kind.NO_CREDENTIALS else "")
    try:
        assert_refused(refreshed, cause)
    finally:
        refreshed.server.faults.clear()
        refreshed.config.write_text(PROFILE + KEYS)
        refreshed.hurry.unlink(missing_ok=True)
