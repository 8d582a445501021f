"""One listing for many hosts: who lists, who waits, who takes over, and what is never replaced."""

import gc
import multiprocessing
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from math import inf
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from types import SimpleNamespace
from typing import Literal

import pytest
import trio
import trio.testing

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from bench.s3server.buckets import MemoryContent
from bench.s3server.faults import ACCESS_DENIED, SLOW_DOWN, Answer, FaultRule, Stall
from fastfuse.errors import AccessError, ConfigurationError, EmptySourceError, WriteConflictError
from fastfuse.index import saved as shared_module
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.saved import CLAIM_SUFFIX, SharedIndex
from fastfuse.index.snapshot import Snapshot, open_snapshot
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.s3 import upload as upload_module
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.upload import NO_OBJECT, ObjectState, ObjectWriter
from tests.index.indexes import memory_file
from tests.servers import S3Server

SOURCE = S3Uri("data", "set/")
PLACE = S3Uri("shared", "lists/set.index")
ORIGIN = IndexOrigin(saved=PLACE, max_age_s=3600)
HOSTS = multiprocessing.get_context("forkserver")
HOSTS.set_forkserver_preload(["fastfuse.index.make"])


class Clock:
    """The server's clock, which only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock, aws_environment: object) -> Iterator[LoopbackServer]:
    yield from serving(ServerConfig(writes="conditional", clock_s=clock))


def serving(config: ServerConfig) -> Iterator[LoopbackServer]:
    data = MemoryObjects({f"set/{at}": bytes(at) for at in range(5)})
    with LoopbackServer({"data": data, "shared": MemoryObjects()}, config) as server:
        yield server


def opened(
    endpoint_url: str, origin: IndexOrigin = ORIGIN, source: S3Uri = SOURCE, counters: Counters | None = None
) -> tuple[int, int]:
    """Open the index as a host does; return its number of files and when it was listed."""
    with memory_file() as fd:
        try:
            make_index(source, origin, session_of(endpoint_url), fd, counters)
        finally:
            gc.enable()  # which a process that makes an index does not live to need
        snapshot = open_snapshot(fd)
        return snapshot.table.metadata.file_count, snapshot.listed_at_ns


def session_of(endpoint_url: str) -> S3Session:
    return S3Session(ConnectionConfig(endpoint_url=endpoint_url, region="us-east-1", force_path_style=True))


def host(environment: Mapping[str, str], endpoint_url: str, found: "Queue[tuple[int, int]]") -> None:
    os.environ.update(environment)
    shared_module.LONGEST_PAUSE_S = 0.2
    found.put(opened(endpoint_url))


@pytest.fixture
def lists_of_one(aws_environment: object) -> int:
    """The number of LIST requests of one listing of the source."""
    for server in serving(ServerConfig()):
        opened(server.endpoint_url, IndexOrigin())
        return server.count("ListObjectsV2")
    raise AssertionError


def started(server: LoopbackServer, found: object, count: int) -> list[BaseProcess]:
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    hosts: list[BaseProcess] = [
        HOSTS.Process(target=host, args=(environment, server.endpoint_url, found)) for _ in range(count)
    ]
    for one in hosts:
        one.start()
    return hosts


def test_hosts_that_start_at_once_list_once_and_one_that_dies_is_replaced(
    server: LoopbackServer, clock: Clock, lists_of_one: int
) -> None:
    """L9"""
    # Nobody's listing is answered, so the first host is killed in it, with its claim in place.
    stalled = server.faults.add(FaultRule(operation="ListObjectsV2", action=Stall(0)))
    found = HOSTS.Queue()
    hosts = started(server, found, 1)
    try:
        server.wait_until(lambda seen: seen.requests.get("ListObjectsV2", 0) > 0, 60)
        hosts[0].kill()
        hosts[0].join()
        hosts += started(server, found, 2)
        # All of them have seen that claim, which has not expired: they wait.
        before = server.statistics().requests["HeadObject"]
        server.wait_until(lambda seen: seen.requests["HeadObject"] >= before + 8, 60)
        before = server.count("ListObjectsV2")
        server.faults.remove(stalled)
        assert found.empty()
        clock.now_s += 31
        results = [found.get(timeout=60) for _ in range(2)]
    finally:
        for one in hosts:
            one.kill()
            one.join()
    assert server.count("ListObjectsV2") == before + lists_of_one
    assert set(results) == {results[0]}
    assert results[0][0] == 5
    assert is_released(server)


def shared_bucket(server: LoopbackServer) -> MemoryObjects:
    shared = server.buckets["shared"]
    assert isinstance(shared, MemoryObjects)
    return shared


def abandon_claim(server: LoopbackServer) -> None:
    shared_bucket(server).put(PLACE.path + CLAIM_SUFFIX, b"of a host that died", modified_s=0)


def held(server: LoopbackServer, key: str = PLACE.path) -> bytes | None:
    stored = shared_bucket(server).view().lookup(key.encode())
    if stored is None:
        return None
    assert isinstance(stored.content, MemoryContent)
    return stored.content.data


def is_released(server: LoopbackServer) -> bool:
    return held(server, PLACE.path + CLAIM_SUFFIX) == b""


def test_a_young_index_is_opened_and_an_old_one_replaced(server: LoopbackServer, clock: Clock) -> None:
    """L9"""
    first = opened(server.endpoint_url)
    before = server.count("ListObjectsV2")
    clock.now_s += 3600
    assert opened(server.endpoint_url) == first
    assert server.count("ListObjectsV2") == before
    clock.now_s += 1
    second = opened(server.endpoint_url)
    assert second > first
    assert server.count("ListObjectsV2") > before
    assert opened(server.endpoint_url) == second
    assert is_released(server)


@pytest.mark.parametrize("age_s", [1, 3601], ids=["young", "old"])
def test_an_index_of_an_earlier_format_is_replaced_once(server: LoopbackServer, clock: Clock, age_s: int) -> None:
    opened(server.endpoint_url)
    now = held(server)
    assert now is not None
    shared_bucket(server).put(PLACE.path, now[:8] + b"\2" + now[9:], modified_s=int(clock.now_s))
    clock.now_s += age_s
    replaced = opened(server.endpoint_url)
    lists = server.count("ListObjectsV2")
    assert opened(server.endpoint_url) == replaced
    assert server.count("ListObjectsV2") == lists


def test_shards_of_another_listing_are_warned_of(
    server: LoopbackServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (replace(ORIGIN, shard=Shard(index=at, count=2)) for at in range(2))
    assert [opened(server.endpoint_url, origin)[0] for origin in (first, second)] == [3, 2]
    clock.now_s += 3601
    assert caplog.messages == []
    opened(server.endpoint_url, first)
    opened(server.endpoint_url, second)
    (warning,) = caplog.messages
    assert warning.startswith(f"{PLACE} is too old, and {SOURCE} is listed anew: if a host still runs with a shard of")
    clock.now_s += 3601
    opened(server.endpoint_url)
    assert caplog.messages == [warning]


def test_all_that_is_tried_again_is_counted(server: LoopbackServer) -> None:
    """Of the host that writes the index, and of the next one, which fetches it and reads a byte of an object."""

    def refuse(operation: str, bucket: str, skip: int = 0) -> None:
        server.faults.add(FaultRule(action=SLOW_DOWN, operation=operation, bucket=bucket, skip=skip, times=1))

    counters = Counters()
    refuse("HeadObject", "shared")
    refuse("PutObject", "shared")
    opened(server.endpoint_url, counters=counters)
    refuse("HeadObject", "shared")
    refuse("HeadObject", "shared", skip=2)  # the first one of the client that fetches the index
    refuse("GetObject", "shared")
    refuse("GetObject", "data")
    opened(server.endpoint_url, replace(ORIGIN, checks_reads=True), counters=counters)
    assert sum(count for name, count in counters.as_json().items() if name.startswith("fastfuse_retries")) == 6


def test_what_is_no_index_of_the_source_is_never_replaced(server: LoopbackServer, clock: Clock) -> None:
    """L9"""
    shared = shared_bucket(server)
    shared.put(PLACE.path, b"weights of a week", modified_s=0)
    with pytest.raises(ConfigurationError, match="the index is cut short"):
        opened(server.endpoint_url)
    assert held(server) == b"weights of a week"
    assert is_released(server)
    shared.delete(PLACE.path)
    opened(server.endpoint_url)
    clock.now_s += 7200
    with pytest.raises(ConfigurationError, match="an index of s3://data/set/, not of s3://data/other/"):
        opened(server.endpoint_url, source=S3Uri("data", "other/"))
    assert opened(server.endpoint_url)[0] == 5


@pytest.mark.parametrize(("key", "is_beginning"), [("set/x.index", False), ("set.index", True)])
def test_an_index_that_would_be_a_file_of_its_source_is_refused(
    server: LoopbackServer, key: str, is_beginning: bool
) -> None:
    origin = replace(ORIGIN, saved=S3Uri("data", key), is_key_name_prefix=is_beginning)
    with pytest.raises(ConfigurationError, match=f"--index s3://data/{key} lies in the source s3://data/set"):
        opened(server.endpoint_url, origin, S3Uri("data", "set"))


def test_a_host_whose_listing_fails_lets_the_next_one_try(server: LoopbackServer) -> None:
    with pytest.raises(EmptySourceError):
        opened(server.endpoint_url, source=S3Uri("data", "absent/"))
    assert is_released(server)
    assert held(server) is None


def test_hosts_that_may_not_write_say_so(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(operation="PutObject", action=ACCESS_DENIED))
    with pytest.raises(AccessError) as caught:
        opened(server.endpoint_url)
    assert "s3:PutObject" in caught.value.hint
    assert not server.count("ListObjectsV2")


@pytest.mark.parametrize(
    ("writes", "refuses", "is_abandoned"),
    [
        ("unconditional", False, False),
        ("replacing", False, False),
        ("replacing", True, False),
        # Conditions that hold are refused, too.
        ("creating", False, True),
        ("creating", False, False),
    ],
)
def test_a_service_without_conditional_writes_leaves_each_host_to_list(
    writes: Literal["unconditional", "replacing", "creating"],
    refuses: bool,
    is_abandoned: bool,
    clock: Clock,
    aws_environment: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """L9"""
    for server in serving(ServerConfig(writes=writes, clock_s=clock)):
        if refuses:
            server.faults.add(FaultRule(operation="PutObject", action=Answer(501, "NotImplemented", "no")))
        if is_abandoned:
            abandon_claim(server)
        for _ in range(2):
            assert opened(server.endpoint_url)[0] == 5
        assert held(server) is None
        assert writes != "creating" or is_abandoned or is_released(server)
    assert sum("this host lists s3://data/set/ for itself" in message for message in caplog.messages) == 2
    assert writes != "creating" or "(If-Match)" in caplog.text


@pytest.mark.parametrize("is_abandoned", [True, False])
def test_hosts_share_a_listing_where_etags_have_no_quotes(
    is_abandoned: bool, clock: Clock, aws_environment: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An upload of parts would not be conditional there: the server takes none.
    monkeypatch.setattr(upload_module, "_UPLOAD_PART_BYTES", 100)
    for server in serving(ServerConfig(writes="bare", clock_s=clock)):
        if is_abandoned:
            abandon_claim(server)
        first = opened(server.endpoint_url)
        before = server.count("ListObjectsV2")
        assert opened(server.endpoint_url) == first
        assert server.count("ListObjectsV2") == before
        clock.now_s += 3601
        assert opened(server.endpoint_url) > first
        assert server.count("ListObjectsV2") > before
        assert is_released(server)


class Claims:
    """Stands in for the index, which never comes, and the claim: what is seen of that, and every put of it refused."""

    def __init__(self, *seen: ObjectState) -> None:
        self._seen = list(seen)
        self.has_bare_etags = False
        self.puts = 0

    @asynccontextmanager
    async def objects(self, *_: object) -> AsyncIterator[tuple[object, object]]:
        yield SimpleNamespace(state=self._none), self

    async def _none(self) -> None:
        await trio.lowlevel.checkpoint()

    async def state(self) -> ObjectState:
        await trio.lowlevel.checkpoint()
        if not self._seen:
            raise EmptySourceError("all is seen")
        return self._seen.pop(0)

    async def put(self, _: bytes, *, replaces: str) -> str:
        self.puts += 1
        raise WriteConflictError(f"{replaces} has changed")


RELEASED, HELD = ObjectState('"released"', 0, 1.0, {}), ObjectState('"held"', 32, 1.0, {})


@pytest.mark.parametrize(
    ("seen", "puts", "has_bare_etags", "is_told"),
    [
        # Each put, which a look at a released claim leads to, is refused, and followed by another look.
        ([RELEASED, HELD, HELD, RELEASED, HELD, HELD, RELEASED, HELD], 3, False, True),
        ([RELEASED, RELEASED, HELD, RELEASED, RELEASED, HELD], 2, False, True),
        ([RELEASED, RELEASED, RELEASED, RELEASED], 2, True, False),
        ([HELD, HELD], 0, False, True),
    ],
    ids=[
        "others have claimed it each time",
        "the write of another host was under way each time",
        "nobody has claimed it",
        "another host lists",
    ],
)
async def test_a_host_that_loses_every_claim_waits_and_distrusts_the_service_only_where_nobody_has_won(
    seen: list[ObjectState],
    puts: int,
    has_bare_etags: bool,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    claims = Claims(*seen)
    monkeypatch.setattr(shared_module, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(SharedIndex, "_objects", claims.objects)
    shared = SharedIndex(PLACE, SOURCE, S3Session(ConnectionConfig()), {""}, 3600)
    with pytest.raises(EmptySourceError):
        await shared._wait_for_turn()
    assert (claims.has_bare_etags, claims.puts) == (has_bare_etags, puts)
    assert caplog.messages == ["waiting for the listing of s3://data/set/ that another host makes"] * is_told


class BriefClaims(Claims):
    """Another host takes the claim before each put, and has released it before this one looks after its pause."""

    _held_until_s = -inf

    async def state(self) -> ObjectState:
        await trio.lowlevel.checkpoint()
        if self.puts == 5:
            raise EmptySourceError("enough")
        return HELD if trio.current_time() < self._held_until_s else RELEASED

    async def put(self, body: bytes, *, replaces: str) -> str:
        self._held_until_s = trio.current_time() + shared_module.FIRST_PAUSE_S / 4
        return await super().put(body, replaces=replaces)


async def test_a_host_that_sees_the_claim_of_others_only_as_it_loses_does_not_distrust_the_service(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    claims = BriefClaims()
    monkeypatch.setattr(SharedIndex, "_objects", claims.objects)
    shared = SharedIndex(PLACE, SOURCE, S3Session(ConnectionConfig()), {""}, 3600)
    with pytest.raises(EmptySourceError):
        await shared._wait_for_turn()
    assert not claims.has_bare_etags


def test_the_index_that_another_host_wrote_first_counts(server: LoopbackServer) -> None:
    """As happens to a host that was stopped for longer than its claim lasts."""
    others: list[bytes | None] = []

    def make() -> tuple[Snapshot, int]:
        shared_bucket(server).delete(PLACE.path + CLAIM_SUFFIX)
        opened(server.endpoint_url)
        others.append(held(server))
        os.write(fd, b"what this host has listed")
        with memory_file(others[0] or b"") as other:
            return open_snapshot(other), 1

    with memory_file() as fd:
        _, requests = SharedIndex(PLACE, SOURCE, session_of(server.endpoint_url), {""}, 3600).open(fd, make)
        assert requests == 0
        assert len(others) == 1
        assert os.pread(fd, 1 << 20, 0) == others[0] == held(server)


def test_an_index_that_came_since_the_first_look_is_taken_and_the_claim_released(
    server: LoopbackServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, index = opened(server.endpoint_url), held(server)
    assert index is not None
    shared_bucket(server).delete(PLACE.path)

    async def come(_: ObjectWriter, etag: str, __: object) -> str:
        shared_bucket(server).put(PLACE.path, index, modified_s=int(clock.now_s))
        return etag

    monkeypatch.setattr(ObjectWriter, "check_conditions", come)
    before = server.count("ListObjectsV2")
    assert opened(server.endpoint_url) == found
    assert server.count("ListObjectsV2") == before
    assert is_released(server)


def test_a_claim_is_renewed_for_as_long_as_its_host_lists(
    server: LoopbackServer, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_module, "RENEWAL_S", 0.02)
    ages: list[float] = []

    def make() -> tuple[Snapshot, int]:
        server.faults.add(FaultRule(action=ACCESS_DENIED, operation="PutObject", times=1))
        seen = server.statistics().requests["PutObject"]
        clock.now_s += 1000
        server.wait_until(lambda now: now.requests["PutObject"] >= seen + 3)
        claim = shared_bucket(server).view().lookup((PLACE.path + CLAIM_SUFFIX).encode())
        assert claim is not None
        assert claim.size_bytes
        ages.append(clock.now_s - claim.modified_s)
        raise EmptySourceError("enough")

    with pytest.raises(EmptySourceError):
        SharedIndex(PLACE, SOURCE, session_of(server.endpoint_url), {""}, 3600).open(-1, make)
    assert ages == [0]
    assert "the claim to list s3://data/set/ was not written anew: " in caplog.text
    assert is_released(server)


@pytest.mark.parametrize("part_bytes", [64 << 20, 5 << 20])
def test_another_server_takes_conditions_alike(
    moto_server: S3Server, part_bytes: int, monkeypatch: pytest.MonkeyPatch, aws_environment: object
) -> None:
    monkeypatch.setattr(upload_module, "_UPLOAD_PART_BYTES", part_bytes)

    async def write_thrice() -> None:
        async with AsyncExitStack() as exits:
            client = S3Client(S3Session(moto_server.config))
            writer = ObjectWriter(client, exits, moto_server.bucket, f"conditions/{part_bytes}")
            assert await writer.state() is None
            await writer.write(fd, replaces=NO_OBJECT)
            first = await writer.state()
            assert first is not None
            assert first.size_bytes == 6 << 20
            assert first.age_s < 60
            os.pwrite(fd, b"another", 0)
            with pytest.raises(WriteConflictError):
                await writer.write(fd, replaces=NO_OBJECT)
            await writer.put(b"another", replaces=first.etag)
            with pytest.raises(WriteConflictError):
                await writer.put(b"a third", replaces=first.etag)

    with memory_file(bytes(6 << 20)) as fd:
        trio.run(write_thrice)
