"""L8: before a listing goes on, a mount learns whether it may read what is listed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from bench.s3server import ACCESS_DENIED, FaultRule, LoopbackServer, MemoryObjects
from fastfuse.errors import AccessError, ObjectArchivedError, ObjectChangedError, ObjectDeniedError
from fastfuse.index.listing.acceptance import check_readable, samples, samples_of_table
from fastfuse.index.listing.lister import list_source
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import Buffer, ObjectRef
from tests.bad_input.checks import refused
from tests.index.indexes import table_of
from tests.mounting import mount_command, run_fastfuse
from tests.store import MemoryStore

DENIED = ObjectDeniedError("The service denies access to 'key' (403 AccessDenied).")


def ref(key: str, *, size_bytes: int = 1, storage_class: str = "STANDARD") -> ObjectRef:
    return ObjectRef("bucket", key, size_bytes, '"e"', 0, storage_class)


class Reader:
    """Fails with each of `errors` in turn, and records what it is asked for."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.asked: list[str] = []

    async def get(self, ref: ObjectRef, start: int, end: int) -> bytes:
        assert (start, end) == (0, 1)
        self.asked.append(ref.key)
        if error := self.errors.pop(0):
            raise error
        return b"x"

    async def aclose(self) -> None:
        pass


def test_samples_are_the_first_the_middle_and_the_last_that_can_be_read() -> None:
    refs = [
        ref("folder/", size_bytes=0),
        ref("archived", storage_class="DEEP_ARCHIVE"),
        *map(ref, ("a", "b", "c")),
        ref("GLACIER", storage_class="GLACIER"),
    ]
    assert [one.key for one in samples(refs)] == ["a", "b", "c"]
    assert [one.key for one in samples(refs[:3])] == ["a"]
    assert samples(refs[:2]) == []


def test_samples_of_a_table_are_those_of_its_objects() -> None:
    usual = dict.fromkeys(["2", "d/3", "d/4"], (5, 0, '"e"', "STANDARD"))
    rows = {"0": (5, 0, '"e"', "GLACIER"), "1": (0, 0, '"e"', "STANDARD")} | usual
    assert [one.key for one in samples_of_table(table_of(rows, prefix="p/"))] == ["p/2", "p/d/3", "p/d/4"]
    assert samples_of_table(table_of([])) == []
    archive = table_of({"0": (5, 0, '"e"', "GLACIER"), "1": (0, 0, '"e"', "GLACIER")}, prefix="p/")
    assert [one.key for one in samples_of_table(archive)] == ["p/0"]


@pytest.mark.parametrize(
    ("errors", "asked"),
    [
        ([None], ["a"]),
        ([DENIED, None], ["a", "b"]),
        ([ObjectArchivedError("archived"), ObjectArchivedError("archived"), ObjectArchivedError("archived")], [*"abc"]),
        ([ObjectChangedError("gone")], ["a"]),
    ],
    ids=["readable", "one denied", "archived", "gone"],
)
async def test_what_may_be_read_or_may_pass_is_let_through(
    errors: Sequence[Exception | None], asked: list[str]
) -> None:
    reader = Reader(*errors)
    await check_readable(reader, map(ref, "abc"))
    assert reader.asked == asked


async def test_a_refusal_after_which_the_service_is_slow_is_none(autojump_clock: trio.testing.MockClock) -> None:
    class Slow(Reader):
        async def get(self, ref: ObjectRef, start: int, end: int) -> bytes:
            if self.asked:
                await trio.sleep_forever()
            return await super().get(ref, start, end)

    await check_readable(Slow(DENIED), map(ref, "abc"))


class WithoutLogs(MemoryStore):
    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        if ref.key.startswith("logs/"):
            raise DENIED
        return await super().get(ref, start, end)


@pytest.mark.parametrize("count", [1, 1500])
async def test_a_first_folder_that_is_denied_does_not_keep_the_others_from_being_listed(count: int) -> None:
    """L8"""
    store = WithoutLogs(dict.fromkeys([f"logs/{at:04}" for at in range(count)] + ["train/a"], b"x"))
    for source in ("", "train/", "train/a"):
        listed = await list_source(store, S3Uri("bucket", source), reader=store)
        assert listed.table.metadata.file_count == (1 if source else count + 1)
    for source in ("logs/", "logs", "logs/0000"):
        with pytest.raises(AccessError, match="denies access"):
            await list_source(store, S3Uri("bucket", source), reader=store)
        # Without a reader, as for `fastfuse index`, nothing is read.
        await list_source(store, S3Uri("bucket", source))
    nothing_else = WithoutLogs({"logs/0000": b"x"})
    with pytest.raises(AccessError, match="denies access"):
        await list_source(nothing_else, S3Uri("bucket", ""), reader=nothing_else)


# --- mounts


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    objects = {f"train/{at:04}": b"x" for at in range(3000)}
    with LoopbackServer({"bucket": MemoryObjects(objects)}) as server:
        yield server


def operations(server: LoopbackServer) -> list[str]:
    return [record.operation for record in server.requests]


def words(server: LoopbackServer, path: Path, *more: str) -> list[str]:
    return mount_command("s3://bucket/train", path, server.endpoint_url, *more)[3:]


@pytest.mark.fuse
def test_denied_reads_of_named_objects_are_told_even_if_their_heads_are_allowed(
    server: LoopbackServer, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("train/0007\n")
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject"))
    arguments = words(server, tmp_path / "place", "--keys-from", str(keys))
    refused(tmp_path / "place", 3, "denies access to 'train/0007'", arguments=arguments)


@pytest.mark.fuse
def test_a_source_that_is_all_archived_is_told_after_its_listing(tmp_path: Path) -> None:
    """L8"""
    objects = MemoryObjects({"train/": b""})
    objects.put("train/cold", b"cold", storage_class="DEEP_ARCHIVE")
    with LoopbackServer({"bucket": objects}) as server:
        told = ("'train/cold' is in an archive storage class (DEEP_ARCHIVE)", "hint: Restore the object first")
        refused(tmp_path, 3, *told, arguments=words(server, tmp_path))


@pytest.mark.fuse
def test_denied_reads_are_told_after_the_first_page(server: LoopbackServer, tmp_path: Path) -> None:
    """L8"""
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject"))
    told = ("denies access to 'train/0000' (403 AccessDenied", "hint: It takes s3:GetObject")
    refused(tmp_path, 3, *told, arguments=words(server, tmp_path))
    # The first page, and whether other names begin with that of the folder.
    assert operations(server)[:2] == ["ListObjectsV2"] * 2
    assert set(operations(server)[2:]) == {"GetObject"}


@pytest.mark.fuse
def test_denied_reads_of_an_index_file_are_told_without_a_listing(server: LoopbackServer, tmp_path: Path) -> None:
    index, place = tmp_path / "index", tmp_path / "place"
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject"))
    # Making an index takes no right to read.
    made = run_fastfuse("index", "s3://bucket/train", "-o", str(index), *words(server, place)[3:-2])
    assert made.returncode == 0, made.stderr
    server.clear_requests()
    refused(place, 3, "denies access to 'train/0000'", arguments=words(server, place, "--index", str(index)))
    assert set(operations(server)) == {"GetObject"}
