"""Every class of failure in every situation: what is read or which error comes, and all that the operator sees of it.

A row is a class of the retry policy's table (`s3.retry_policy`, as docs/SEMANTICS.md shows it) and a situation. What is
expected of it is derived from the policy: bytes or an error, how many requests are made and until when, every line of
the log, and the counters of failures.
"""

import errno
import logging
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ServerConfig, TlsFiles
from bench.s3server.server_config import create_certificate
from fastfuse.errors import AccessError, FastfuseError, ReadError, ServiceError, SourceError, first_of
from fastfuse.filesystem.kernel.fuse import pyfuse3
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.serving.operations import MountOperations
from fastfuse.filesystem.serving.reads import Reads
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.listing import page as listing_page
from fastfuse.index.listing.lister import list_source
from fastfuse.index.snapshot import Snapshot, save_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3 import retry_policy
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.failures import Failure, Kind, outcome_of, read_error
from fastfuse.s3.retries import Retries
from fastfuse.s3.retry_policy import UNTIL_DEADLINE, attempts
from fastfuse.sagemaker.description.channel import Channel, Cluster, InputMode, TrainingJob
from fastfuse.sagemaker.download.file_channel import DownloadSettings, download_channel
from fastfuse.sagemaker.files import JobPaths
from fastfuse.sagemaker.pipe.content import sequence_of
from fastfuse.sagemaker.pipe.fifo import Guard
from fastfuse.sagemaker.pipe.pipe_channel import PipeStream
from fastfuse.sagemaker.run_settings import ChannelTask, RunSettings
from tests.fault_causes import CAUSES, Cause, failed_read_line, is_met, untimed
from tests.filesystem.waiting import wait_until
from tests.sagemaker.download.channels import table_of

pytestmark = pytest.mark.usefixtures("aws_environment")

MIB = 1 << 20
# Of `one` everything is one GET; of `two` each part is.
OBJECTS = {"one": os.urandom(MIB), "two": os.urandom(2 * MIB), "small": os.urandom(5000)}
CONFIG = ReadaheadConfig.within(64 * MIB, part_size_bytes=MIB, max_parts_in_flight=16)


class Scene:
    """A server, a client of it whose requests end by `deadline_s`, and where files and FIFOs are made."""

    def __init__(
        self,
        server: LoopbackServer,
        connection: ConnectionConfig,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.server = server
        self.connection = connection
        self.directory = directory
        self.counters = Counters()
        self._retries = Retries(self.counters)
        monkeypatch.setattr(listing_page, "LIST_DEADLINE_S", connection.deadline_s)

    def ref(self, key: str) -> ObjectRef:
        stored = self.server.buckets["bucket"].view().lookup(key.encode())
        assert stored is not None
        return ObjectRef("bucket", key, stored.size_bytes, stored.etag, stored.modified_s * 10**9)

    def table(self, *keys: str) -> InodeTable:
        return table_of(map(self.ref, keys))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[S3Client]:
        buffers = PartBuffers(part_bytes=MIB, limit_bytes=64 * MIB)
        session = S3Session(self.connection)
        client = S3Client(session, buffers=buffers, counters=self.counters, retries=self._retries)
        try:
            yield client
        finally:
            with trio.CancelScope(shield=True):
                await client.aclose()

    async def read(self, key: str, start: int, end: int) -> bytes:
        """Read bytes of a file as the kernel's requests do, one after the other."""
        table, operations = self.table(*OBJECTS), MountOperations(self.counters, uid=0, gid=0)
        inode = table.lookup(ROOT, key.encode())
        assert inode is not None
        step = min(end - start, MIB // 8)
        async with self.client() as client, trio.open_nursery() as nursery:
            engine = ReadEngine(client, CONFIG, nursery, lambda: table)
            operations.serve(table, engine)
            reads = Reads(operations, engine, self.counters, ReadsInHand(), nursery)
            pieces = [bytes(await reads.read(inode, at, step)) for at in range(start, end, step)]
            nursery.cancel_scope.cancel()
        return b"".join(pieces)

    async def list(self) -> int:
        async with self.client() as client:
            listed = await list_source(client, S3Uri.parse("s3://bucket/"), retries=self._retries)
        return listed.table.metadata.file_count

    async def download(self) -> bytes:
        """Run a channel in mode File, as its process does."""
        fd = os.memfd_create("test")
        table = self.table("one")
        save_snapshot(Snapshot(source="s3://bucket/", listed_at_ns=1, table=table, refusals=Refusals()), fd)
        settings = DownloadSettings(
            directory=self.directory, base=self.directory.parent, part_size_bytes=MIB, memory_target_bytes=64 * MIB
        )
        try:
            await trio.to_thread.run_sync(
                lambda: download_channel(fd, self.connection, settings, lambda _: None, self.counters)
            )
        finally:
            os.close(fd)
        return (self.directory / "one").read_bytes()

    async def stream(self) -> bytes:
        """Run the first epoch of a channel in mode Pipe, as its process does; raise the failure that it keeps."""
        channel = Channel(name="train", input_mode=InputMode.PIPE, source=S3Uri.parse("s3://bucket/"))
        guard, begin_fd = Guard(), os.eventfd(1)
        guard.hand_over()  # to nobody
        settings = RunSettings(
            job=TrainingJob(channels=(channel,)), cluster=Cluster(current_host="algo-1", hosts=("algo-1",)),
            paths=JobPaths(self.directory), connection=self.connection, origins={}, uid=0, gid=0,
            part_size_bytes=MIB, memory_target_bytes={channel.name: 64 * MIB},
        )  # fmt: skip
        task = ChannelTask(channel, settings, begin_fd, guard)
        has_ended = trio.Event()

        def report(stream: PipeStream) -> None:
            if stream.failure is not None or self.counters.get("fastfuse_read_served_bytes") == len(OBJECTS["one"]):
                has_ended.set()

        stream = PipeStream(sequence_of(self.table("one"), channel), task, self.counters, report)
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append((settings.paths.data / "train_0").read_bytes()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run, reader.start)
            await has_ended.wait()
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(reader.join)
        await stream.aclose()
        guard.close()
        os.close(begin_fd)
        if stream.failure is not None:
            raise stream.failure
        return read[0]


@dataclass(frozen=True, slots=True)
class Situation:
    """One column of the matrix."""

    name: str
    run: Callable[[Scene], Awaitable[object]]
    # What `run` returns if all is well.
    expected: object
    # The object that is read; empty for a listing.
    key: str = ""
    # The place of the read that meets the failure; None where parts are fetched at the same time.
    offset: int | None = 0
    # So many requests are answered before one meets the failure.
    skip: int = 0
    # Whether the kernel asks.
    is_mounted: bool = False

    @property
    def is_read(self) -> bool:
        return bool(self.key)

    @property
    def operation(self) -> str:
        return "GetObject" if self.is_read else "ListObjectsV2"


SITUATIONS = (
    Situation("listing", Scene.list, len(OBJECTS)),
    Situation("first_read", lambda scene: scene.read("one", 0, 4096), OBJECTS["one"][:4096], "one", is_mounted=True),
    Situation(
        *("sequential_stream", lambda scene: scene.read("two", 0, 2 * MIB), OBJECTS["two"], "two"),
        offset=None, skip=1, is_mounted=True,
    ),
    Situation("small_file", lambda scene: scene.read("small", 0, 5000), OBJECTS["small"], "small", is_mounted=True),
    Situation("file_download", Scene.download, OBJECTS["one"], "one"),
    Situation("pipe", Scene.stream, OBJECTS["one"], "one", offset=None),
)  # fmt: skip


# What is tried until the deadline ends between the longest pause before the deadline and the deadline.
DEADLINE_S = 0.5
LONGEST_PAUSE_S = 0.1
# The deadline of what passes or is final, on a busy machine, too.
PATIENCE_S = 60.0
COMMAND_ERRORS: dict[int, type[FastfuseError]] = {
    errno.EIO: ServiceError,
    errno.ESTALE: SourceError,
    errno.EACCES: AccessError,
}
COUNTED = ("fastfuse_retries", "fastfuse_errors", "fastfuse_fetch_requests", "fastfuse_refused_gets")

# The counters that are not 0, by metric and label. None: a number that depends on time.
Counts = dict[tuple[str, str], int | None]


class Ending(NamedTuple):
    """What comes of a failure that lasts: an error, lines of the log, and the outcome that is counted of a GET."""

    kind: type[Exception]
    text: str
    lines: tuple[str, ...] = ()
    outcome: str = ""
    # What the kernel is told.
    errno: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row while it is tried."""

    cause: Cause
    situation: Situation
    scene: Scene
    # The rule that makes the server fail; None where something else is at fault.
    rule: int | None = None

    @property
    def most(self) -> int:
        """How often a request is made, by the policy."""
        return attempts(self.cause.kind, is_read=self.situation.is_read)

    @property
    def is_exact(self) -> bool:
        """Whether one request at a time is made, and so it is known how many fail."""
        return self.situation.offset is not None

    @property
    def name(self) -> str:
        """What is requested, as the log names it."""
        if self.situation.is_read:
            return f"'s3://bucket/{self.situation.key}'"
        return "page 1 of the listing of 's3://bucket/'"

    @property
    def hits(self) -> int | None:
        """How many requests the server has failed."""
        return None if self.rule is None else self.scene.server.faults.hits(self.rule)

    def counts(self) -> Counts:
        found: Counts = {}
        for shown, count in self.scene.counters.as_json().items():
            name, _, label = shown.partition("{")
            if name in COUNTED and count:
                found[name, label.partition('"')[2].rstrip('"}')] = int(count)
        # Readahead that was under way at the end, or in the pieces of a stream that came before.
        for outcome in ("cancelled",) if self.is_exact else ("cancelled", "ok", "unavailable", "deadline"):
            found.pop(("fastfuse_fetch_requests", outcome), None)
        return found

    def expected_counts(self, outcome: str, *, retries: int | None, number: int = 0) -> Counts:
        """Return the counters after so many retries, an `outcome` of the GETs, and an errno of this `number`."""
        expected: Counts = {("fastfuse_retries", self.cause.failure.cause): retries}
        if self.situation.is_read:
            if self.is_exact or outcome in ("changed", "denied", "other"):
                expected["fastfuse_fetch_requests", outcome] = 1 if self.is_exact else None
            if self.cause.is_server_error:
                expected["fastfuse_refused_gets", ""] = self.hits if self.is_exact else None
        if number:
            expected["fastfuse_errors", errno.errorcode[number]] = 1
        return {key: count for key, count in expected.items() if count != 0}

    def endings(self, deadline_s: float | None) -> dict[tuple[type[Exception], str, tuple[str, ...]], Ending]:
        """Return how the row may end if its failure lasts, by what is seen of it."""
        if self.situation.is_read:
            errors = self.cause.read_errors(self.scene.ref(self.situation.key), deadline_s)
            endings = [self._ending(error) for error in errors]
        else:
            failures = self.cause.command_errors(self.scene.server.endpoint_url, deadline_s)
            endings = [Ending(type(error), str(error)) for error in failures]
        return {ending[:3]: ending for ending in endings}

    def _ending(self, error: ReadError) -> Ending:
        # What keeps a request from being made is no outcome of a GET.
        outcome = "other" if self.cause.resolution else outcome_of(error)
        if self.situation.is_mounted:
            line = failed_read_line(error, self.situation.offset)
            return Ending(pyfuse3.FUSEError, os.strerror(error.errno), (line,), outcome, error.errno)
        if self.situation.name == "pipe":
            told = f"epoch 0 of channel train has failed, and its reader waits: {error}"
            return Ending(type(error), str(error), (untimed(told),), outcome)
        return Ending(COMMAND_ERRORS[error.errno], str(error), (), outcome)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A certificate that the client does not trust."""
    return create_certificate(tmp_path_factory.mktemp("tls"))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Makes rows; what they need ends with the test."""

    certificate: TlsFiles
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    exits: ExitStack

    def begin(self, kind: Kind, situation: Situation, *, times: int | None, deadline_s: float = PATIENCE_S) -> Row:
        """Make a row whose requests fail from now on, or so many `times`."""
        config = ServerConfig(tls=self.certificate if kind is Kind.TLS else None)
        server = self.exits.enter_context(LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, config))
        profile = "missing" if kind is Kind.BAD_CONFIGURATION else None
        connection = ConnectionConfig(
            endpoint_url=server.endpoint_url, region="us-east-1", profile=profile, deadline_s=deadline_s
        )
        row = Row(CAUSES[kind], situation, Scene(server, connection, self.directory, self.monkeypatch))
        if row.cause.action is not None:
            rule = FaultRule(
                action=row.cause.action, operation=situation.operation, key=situation.key, skip=situation.skip,
                times=times,
            )  # fmt: skip
            row = replace(row, rule=server.faults.add(rule))
        if kind is Kind.NO_CREDENTIALS:
            self.monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        if kind is Kind.UNREACHABLE:
            server.close()
        return row

    async def bring_back(self, row: Row) -> None:
        """Serve again, at the same port, once a request is tried again."""
        counters = row.scene.counters
        await trio.to_thread.run_sync(wait_until, lambda: counters.get("fastfuse_retries", "unreachable") > 0)
        config = ServerConfig(port=row.scene.server.port)
        self.exits.enter_context(LoopbackServer(row.scene.server.buckets, config))


@pytest.fixture
def matrix(
    certificate: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Matrix]:
    monkeypatch.setattr(retry_policy, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(retry_policy, "LONGEST_PAUSE_S", LONGEST_PAUSE_S)
    caplog.set_level(logging.INFO)
    with ExitStack() as exits:
        yield Matrix(certificate, tmp_path, monkeypatch, exits)


def rows(*, only_tried_again: bool) -> list[object]:
    return [
        pytest.param(kind, situation, id=f"{kind.name.lower()}-{situation.name}")
        for kind in Kind
        for situation in SITUATIONS
        if is_met(kind, is_read=situation.is_read)
        if not only_tried_again or attempts(kind, is_read=situation.is_read) > 1
    ]


def assert_counts(found: Counts, expected: Counts) -> None:
    assert found == {key: found.get(key) if count is None else count for key, count in expected.items()}


def test_every_class_of_the_table_has_a_cause_and_a_row_in_each_situation() -> None:
    assert CAUSES.keys() == set(Kind)
    assert {kind for kind in Kind if not is_met(kind, is_read=True)} == {Kind.NOT_S3}
    ref = ObjectRef("bucket", "key", 1, "")
    for kind, cause in CAUSES.items():
        (error,) = cause.read_errors(ref, None)
        assert error.errno == read_error(Failure(kind=kind, detail=""), ref).errno


@pytest.mark.parametrize(("kind", "situation"), rows(only_tried_again=True))
async def test_what_passes_costs_time_and_is_told_with_its_end(
    kind: Kind, situation: Situation, matrix: Matrix, caplog: pytest.LogCaptureFixture
) -> None:
    row = matrix.begin(kind, situation, times=1)
    async with trio.open_nursery() as nursery:
        if kind is Kind.UNREACHABLE:
            nursery.start_soon(matrix.bring_back, row)
        is_right = await situation.run(row.scene) == situation.expected  # no comparison of megabytes in a failure
        assert is_right
    # Nobody counts what a closed port refuses.
    retries = row.scene.counters.get("fastfuse_retries", "unreachable") if row.hits is None else row.hits
    assert row.hits in (1, None)
    assert_counts(row.counts(), row.expected_counts("ok", retries=retries))
    first, last = map(untimed, caplog.messages)
    assert first == row.cause.retry_line(row.name)
    # One request may fail often, or each of several once.
    failures = re.escape(f"{retries} × {row.cause.detail}")
    assert re.fullmatch(rf"answered again after N s: {failures}; (1 request|\d+ requests) waited", last)


@pytest.mark.parametrize(("kind", "situation"), rows(only_tried_again=False))
async def test_what_lasts_is_the_error_that_the_policy_says_and_one_line(
    kind: Kind, situation: Situation, matrix: Matrix, caplog: pytest.LogCaptureFixture
) -> None:
    is_timed = attempts(kind, is_read=situation.is_read) == UNTIL_DEADLINE
    deadline_s = DEADLINE_S if is_timed else None
    row = matrix.begin(kind, situation, times=None, deadline_s=deadline_s or PATIENCE_S)
    began_s = time.monotonic()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the group of a nursery, or what is in it
        await situation.run(row.scene)
    took_s, error, told = time.monotonic() - began_s, first_of(caught.value), [*map(untimed, caplog.messages)]
    counts = row.counts()
    is_tried_again = ("fastfuse_retries", row.cause.failure.cause) in counts
    # A busy machine may be at the first attempt when the deadline comes.
    assert is_tried_again == (row.most > 1) or (is_timed and took_s >= DEADLINE_S - LONGEST_PAUSE_S)
    if is_tried_again:
        assert told.pop(0) == row.cause.retry_line(row.name)
    if told and told[-1].startswith(f"requests tried again after {row.cause.detail}: "):
        told.pop()  # where the run ends with the error, it tells of the tries that had no line
    if not row.is_exact:
        told = [re.sub(r"a read at \d+ ", "a read at None ", line) for line in told]
    ending = row.endings(deadline_s).get((type(error), str(error), tuple(told)))
    assert ending is not None, (error, told)
    retries = row.most - 1 if row.is_exact and not is_timed else None if is_tried_again else 0
    expected = row.expected_counts(ending.outcome, retries=retries, number=ending.errno)
    if is_timed and row.is_exact and (refused := expected.pop(("fastfuse_refused_gets", ""), None)):
        # The last request may not be answered in time.
        assert counts.pop(("fastfuse_refused_gets", ""), 0) in (refused, refused - 1)
    assert_counts(counts, expected)
    if is_timed and row.is_exact:
        assert DEADLINE_S - LONGEST_PAUSE_S <= took_s < PATIENCE_S
    elif row.is_exact:
        assert row.hits in (row.most, None)
