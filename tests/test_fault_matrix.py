"""Every kind of failure in every situation: what the reader or the command gets, and what the operator sees.

The expected outcome of a row is derived from the policy (`s3.retry_policy`, `s3.failures`), shown in docs/SEMANTICS.md.
"""

import errno
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from fastfuse.errors import DeadlineError, ServiceError, first_of
from fastfuse.filesystem.control import request_refresh
from fastfuse.filesystem.fuse import pyfuse3
from fastfuse.filesystem.operations import MountOperations
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.listing import page as listing_page
from fastfuse.index.listing.lister import list_source
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3 import client as s3_client
from fastfuse.s3 import retry_policy
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.failures import Failure, Kind, read_error, start_error
from fastfuse.s3.retries import Retries
from fastfuse.s3.retry_policy import attempts
from fastfuse.sagemaker.download.file_channel import DownloadSettings, download
from fastfuse.sagemaker.pipe.content import File
from fastfuse.sagemaker.pipe.epoch import EpochWriter, Lookahead
from fastfuse.testing import Answer, FaultRule, LoopbackServer, MemoryObjects, Reset
from fastfuse.testing.faults import Action
from tests.semantics.places import BUCKET, Place, place
from tests.semantics.test_metrics import Scrape

MIB = 1 << 20
LARGE = os.urandom(3 * MIB)
SMALL = os.urandom(5000)
DEADLINE_S = 0.5
# The deadline of what passes or is final, on a busy machine, too.
PATIENCE_S = 60.0
CONFIG = ReadaheadConfig.within(64 * MIB, part_size_bytes=MIB, max_parts_in_flight=16)

# An action of the server for each kind that a server can cause with a reply.
ACTIONS: dict[Kind, Action] = {
    Kind.THROTTLED: Answer(503, "SlowDown", "m"),
    Kind.BUSY: Answer(500, "InternalError", "m"),
    Kind.BROKEN: Reset(None),
    Kind.CHANGED: Answer(412, "PreconditionFailed", "m"),
    Kind.NO_BUCKET: Answer(404, "NoSuchBucket", "m"),
    Kind.DENIED: Answer(403, "AccessDenied", "m"),
    Kind.ARCHIVED: Answer(403, "InvalidObjectState", "m"),
    Kind.EXPIRED: Answer(400, "ExpiredToken", "m"),
    Kind.SKEWED: Answer(403, "RequestTimeTooSkewed", "m"),
    Kind.BAD_KEYS: Answer(403, "SignatureDoesNotMatch", "m"),
    Kind.WRONG_REGION: Answer(301, "PermanentRedirect", "m"),
    Kind.OTHER: Answer(501, "NotImplemented", "m"),
}


class Scene:
    """A server with two objects, and what reads them."""

    def __init__(self, server: LoopbackServer, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.directory = directory
        self._monkeypatch = monkeypatch
        self.counters = Counters()
        self.retries = Retries(self.counters)
        self.limit(PATIENCE_S)
        self.table = self._table()

    def limit(self, deadline_s: float) -> None:
        """Let requests end by this deadline."""
        self._monkeypatch.setattr(s3_client, "LIST_DEADLINE_S", deadline_s)
        self._monkeypatch.setattr(listing_page, "_DEADLINE_S", deadline_s)
        # Without keys of its own the client would ask for other ones.
        config = ConnectionConfig(
            endpoint_url=self.server.endpoint_url, region="us-east-1", deadline_s=deadline_s, sign_request=False
        )
        self.client = S3Client(
            S3Session(config),
            buffers=PartBuffers(part_bytes=MIB, limit_bytes=64 * MIB),
            counters=self.counters,
            retries=self.retries,
        )

    def _table(self) -> InodeTable:
        view = self.server.buckets["bucket"].view()
        builder = TableBuilder("bucket", "")
        for key, data in ((b"large", LARGE), (b"small", SMALL)):
            stored = view.lookup(key)
            assert stored is not None
            builder.add([key], [len(data)], [stored.modified_s * 10**9], [stored.etag], ["STANDARD"])
        return builder.build()[0]

    @asynccontextmanager
    async def mounted(self) -> AsyncIterator[Callable[[bytes, int, int], Awaitable[bytes]]]:
        """Yield what reads bytes of a file as the kernel's requests do."""
        operations = MountOperations(self.counters, uid=0, gid=0)
        async with trio.open_nursery() as nursery:
            engine = ReadEngine(self.client, CONFIG, nursery, lambda: self.table)
            operations.serve(self.table, engine)

            async def read(name: bytes, start: int, end: int) -> bytes:
                inode = self.table.lookup(ROOT, name)
                assert inode is not None
                step = min(end - start, MIB // 8)
                return b"".join([bytes(await operations.read(inode, at, step)) for at in range(start, end, step)])

            yield read
            nursery.cancel_scope.cancel()


async def sequential_stream(scene: Scene) -> bool:
    async with scene.mounted() as read:
        return await read(b"large", 0, len(LARGE)) == LARGE


async def random_read(scene: Scene) -> bool:
    async with scene.mounted() as read:
        return await read(b"large", 2 * MIB, 2 * MIB + 4096) == LARGE[2 * MIB : 2 * MIB + 4096]


async def small_file(scene: Scene) -> bool:
    async with scene.mounted() as read:
        return await read(b"small", 0, len(SMALL)) == SMALL


async def file_download(scene: Scene) -> bool:
    settings = DownloadSettings(directory=scene.directory, part_size_bytes=MIB, memory_target_bytes=64 * MIB)
    await download(scene.table, scene.client, settings, lambda _: None, most_gets=16)
    return (scene.directory / "large").read_bytes() == LARGE


async def pipe(scene: Scene) -> bool:
    written: list[bytes] = []

    async def write(piece: Buffer) -> None:
        written.append(bytes(piece))

    files = [
        File(inode, scene.table.ref(inode))
        for name in (b"large", b"small")
        if (inode := scene.table.lookup(ROOT, name)) is not None
    ]
    async with trio.open_nursery() as nursery:
        lookahead = Lookahead(ReadEngine(scene.client, CONFIG, nursery, lambda: scene.table), CONFIG)
        nursery.start_soon(lookahead.run, files)
        epoch = EpochWriter(lookahead, write, is_gzip=False, wraps_records=False)
        await epoch.run(files)
        nursery.cancel_scope.cancel()
    return b"".join(written) == LARGE + SMALL


async def listing(scene: Scene) -> bool:
    listed = await list_source(scene.client, S3Uri.parse("s3://bucket/"), retries=scene.retries)
    return listed.table.metadata.file_count == 2


MOUNTED = (sequential_stream, random_read, small_file)
SITUATIONS = (listing, *MOUNTED, file_download, pipe)
CAUSES = ("throttled", "busy", "broken", "unreachable", "credentials", "other")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Scene]:
    # The first pauses fit into the shorter deadline.
    monkeypatch.setattr(retry_policy, "FIRST_PAUSE_S", 0.01)
    caplog.set_level(logging.INFO)
    with LoopbackServer({"bucket": MemoryObjects({"large": LARGE, "small": SMALL})}) as server:
        yield Scene(server, tmp_path, monkeypatch)


def rows(*, are_tried_again: bool) -> list[object]:
    """Return each kind with each situation in which it is tried again until the deadline, or the others."""
    return [
        pytest.param(kind, situation, id=f"{kind.name.lower()}-{situation.__name__}")
        for kind in ACTIONS
        for situation in SITUATIONS
        if (attempts(kind, is_read=situation is not listing) > 1) == are_tried_again
    ]


def retried(scene: Scene) -> dict[str, int]:
    return {cause: count for cause in CAUSES if (count := scene.counters.get("fastfuse_retries", cause))}


def lines(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [line for line in caplog.messages if all(word in line for word in words)]


@pytest.mark.parametrize(("kind", "situation"), rows(are_tried_again=True))
async def test_what_passes_costs_time_and_is_told_with_its_end(
    scene: Scene, caplog: pytest.LogCaptureFixture, kind: Kind, situation: Callable[[Scene], Awaitable[bool]]
) -> None:
    operation = "ListObjectsV2" if situation is listing else "GetObject"
    scene.server.faults.add(FaultRule(action=ACTIONS[kind], operation=operation, times=1))
    assert await situation(scene)
    await scene.client.aclose()
    assert len(lines(caplog, "; trying again (attempt 1 failed")) == 1
    assert len(lines(caplog, "answered again after ", "1 × ")) == 1
    assert not lines(caplog, "failed with")
    assert retried(scene) == {Failure(kind=kind, detail="").cause: 1}


@pytest.mark.parametrize(("kind", "situation"), rows(are_tried_again=True) + rows(are_tried_again=False))
async def test_what_lasts_is_the_error_that_the_policy_says_and_one_line(
    scene: Scene, caplog: pytest.LogCaptureFixture, kind: Kind, situation: Callable[[Scene], Awaitable[bool]]
) -> None:
    operation = "ListObjectsV2" if situation is listing else "GetObject"
    scene.server.faults.add(FaultRule(action=ACTIONS[kind], operation=operation))
    is_tried_again = attempts(kind, is_read=situation is not listing) > 1
    if is_tried_again:
        scene.limit(DEADLINE_S)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the group of a nursery, or what is in it
        await situation(scene)
    await scene.client.aclose()
    error = first_of(caught.value)
    failure = Failure(kind=kind, detail="d")
    read = read_error(failure, ObjectRef("bucket", "k", 1, ""))
    if situation in MOUNTED:
        assert isinstance(error, pyfuse3.FUSEError)
        assert error.errno == read.errno
        name = errno.errorcode[read.errno]
        assert len(lines(caplog, "a read at ", f" failed with {name} after ")) == 1
        assert scene.counters.get("fastfuse_errors", name) == 1
    elif situation is listing:
        assert type(error) is type(start_error(failure, bucket="bucket", endpoint="", region=""))
    else:
        # A busy machine may take the whole deadline for one attempt.
        assert isinstance(error, (type(read), DeadlineError) if is_tried_again else type(read))
    assert bool(lines(caplog, "; trying again (attempt 1 failed")) == is_tried_again
    assert bool(retried(scene)) == is_tried_again


@pytest.mark.parametrize("situation", [sequential_stream, small_file, listing], ids=lambda one: one.__name__)
async def test_a_service_that_is_gone_fails_reads_at_their_deadline_and_a_listing_soon(
    scene: Scene, caplog: pytest.LogCaptureFixture, situation: Callable[[Scene], Awaitable[bool]]
) -> None:
    scene.server.close()
    scene.limit(DEADLINE_S)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the group of a nursery, or what is in it
        await situation(scene)
    assert isinstance(first_of(caught.value), pyfuse3.FUSEError | ServiceError)
    await scene.client.aclose()
    assert retried(scene).keys() == {"unreachable"}
    assert len(lines(caplog, "Connection refused; trying again (attempt 1 failed")) == 1
    assert len(lines(caplog, " failed with EIO ")) == (situation is not listing)


@pytest.fixture(scope="module")
def refreshed() -> Iterator[Place]:
    """A real mount, whose refreshes are made to fail."""
    with place({"object": b"bytes"}, "--no-sign-request", "--metrics-listen", "0") as here:
        yield here


def rows_of_refresh(*, are_tried_again: bool) -> list[object]:
    kinds = [kind for kind in ACTIONS if (attempts(kind, is_read=False) > 1) == are_tried_again]
    return [pytest.param(kind, id=kind.name.lower()) for kind in kinds]


@pytest.mark.parametrize("kind", rows_of_refresh(are_tried_again=True))
def test_what_passes_while_a_mount_lists_again_is_told_with_its_end(refreshed: Place, kind: Kind) -> None:
    """What lasts ends a refresh as it ends any listing, after minutes."""
    known, before = len(refreshed.mount.log), Scrape(refreshed.mount.metrics_port())
    refreshed.server.faults.add(FaultRule(action=ACTIONS[kind], operation="ListObjectsV2", times=1))
    assert request_refresh(refreshed.path).files == 1
    retries_of_cause = ("retries_total", Failure(kind=kind, detail="").cause)
    assert Scrape(refreshed.mount.metrics_port())[retries_of_cause] == before[retries_of_cause] + 1
    told = refreshed.mount.log[known:]
    assert told.count("; trying again (attempt 1 failed") == 1, told
    assert told.count("answered again after ") == 1, told


@pytest.mark.parametrize("kind", rows_of_refresh(are_tried_again=False))
def test_a_refresh_that_is_refused_leaves_the_mount_as_it_was_and_says_why(refreshed: Place, kind: Kind) -> None:
    known = len(refreshed.mount.log)
    refreshed.server.faults.add(FaultRule(action=ACTIONS[kind], operation="ListObjectsV2"))
    expected = start_error(Failure(kind=kind, detail=""), bucket=BUCKET, endpoint="", region="")
    with pytest.raises(type(expected)):
        request_refresh(refreshed.path)
    refreshed.server.faults.clear()
    told = refreshed.mount.log[known:]
    assert "; trying again" not in told
    assert told.count(" was not refreshed") == 1, told
    assert (refreshed.path / "object").read_bytes() == b"bytes"
