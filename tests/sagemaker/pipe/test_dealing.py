"""``ShardedByS3Key`` with ``ShuffleConfig`` in Pipe mode, against a model of the API's words, for any content.

"If you use ``S3Prefix`` for ``S3DataType``, this shuffles the results of the S3 key prefix matches. If you use
``ManifestFile``, the order of the S3 object references in the ``ManifestFile`` is shuffled. If you use
``AugmentedManifestFile``, the order of the JSON lines in the ``AugmentedManifestFile`` is shuffled. [...] when
``ShuffleConfig`` is combined with ``S3DataDistributionType`` of ``ShardedByS3Key``, the data is shuffled across nodes
so that the content sent to a particular node on the first epoch might be sent to a different node on the second epoch"
(https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ShuffleConfig.html).
"""

import json
from collections import Counter
from collections.abc import Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.listing.lister import list_source
from fastfuse.index.listing.named import list_augmented_manifest, list_manifest
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.description.channel import Channel, Cluster, InputMode
from fastfuse.sagemaker.pipe.content import File, sequence_of
from tests.store import MemoryStore

EPOCHS = 5
HOSTS = (1, 3, 7)
MANIFEST = "lists/manifest"

# What an epoch has of a host: keys of objects, and texts.
Content = list[str]


class Store(MemoryStore):
    """A bucket that a manifest can be read from, too."""

    max_connections = 4

    async def head(self, bucket: str, key: str) -> ObjectRef:
        assert bucket == self.bucket
        await trio.lowlevel.checkpoint()
        return self.ref(key)


def table_of(kind: SourceKind, sizes: Sequence[int], named: Sequence[int]) -> tuple[InodeTable, list[Content]]:
    """An index of objects with these sizes, and the pieces that the hosts divide; `named` are those of a manifest."""
    objects = {f"data/{number:03}": bytes(size) for number, size in enumerate(sizes)}
    keys = [f"data/{number % len(sizes):03}" for number in named]
    if kind is SourceKind.PREFIX:
        store = Store(objects, bucket="bucket")
        return trio.run(list_source, store, S3Uri("bucket", "data/")).table, [[key] for key in objects]
    source = S3Uri("bucket", MANIFEST)
    if kind is SourceKind.MANIFEST:
        text = json.dumps([{"prefix": "s3://bucket/"}, *keys])
        store = Store({**objects, MANIFEST: text.encode()}, bucket="bucket")
        return trio.run(list_manifest, store, source).table, [[key] for key in keys]
    lines = [{"image-ref": f"s3://bucket/{key}", "label": number} for number, key in enumerate(keys)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    store = Store({**objects, MANIFEST: text.encode()}, bucket="bucket")
    table = trio.run(list_augmented_manifest, store, source).table
    return table, [[key, str(number)] for number, key in enumerate(keys)]


def channel_of(kind: SourceKind, seed: int) -> Channel:
    return Channel(
        name="train",
        input_mode=InputMode.PIPE,
        source=S3Uri("bucket", MANIFEST),
        source_kind=kind,
        is_sharded=True,
        shuffle_seed=seed,
        attribute_names=("image-ref", "label") if kind is SourceKind.AUGMENTED_MANIFEST else (),
    )


def dealt(table: InodeTable, channel: Channel, host_count: int, *, by_bytes: bool = False) -> list[list[Content]]:
    """The content of each epoch of each host, every one of which has the table for itself."""
    names = tuple(sorted(f"algo-{number}" for number in range(1, host_count + 1)))
    hosts = [Cluster(current_host=name, hosts=names).shard(channel, by_bytes=by_bytes) for name in names]
    return [[_content(table, channel, shard, epoch) for epoch in range(EPOCHS)] for shard in hosts]


def _content(table: InodeTable, channel: Channel, shard: Shard | None, epoch: int) -> Content:
    sequence = sequence_of(table, channel, shard)
    items = list(sequence.items(epoch))
    assert [item for item in items if isinstance(item, File)] == list(sequence.files(epoch))
    return [item.ref.key if isinstance(item, File) else item.decode() for item in items]


def pieces(content: Content, kind: SourceKind) -> list[tuple[str, ...]]:
    width = 2 if kind is SourceKind.AUGMENTED_MANIFEST else 1
    return [tuple(content[at : at + width]) for at in range(0, len(content), width)]


@settings(max_examples=50)
@given(
    st.sampled_from(SourceKind),
    st.lists(st.integers(0, 90), min_size=1, max_size=20),
    st.lists(st.integers(0, 19), min_size=1, max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(HOSTS),
    st.booleans(),
)
def test_hosts_have_everything_once_between_them_in_every_epoch(
    kind: SourceKind, sizes: list[int], named: list[int], seed: int, host_count: int, by_bytes: bool
) -> None:
    table, expected = table_of(kind, sizes, named)
    hosts = dealt(table, channel_of(kind, seed), host_count, by_bytes=by_bytes)
    for epoch in range(EPOCHS):
        shares = [pieces(host[epoch], kind) for host in hosts]
        assert Counter(piece for share in shares for piece in share) == Counter(map(tuple, expected))
        if by_bytes:
            loads = [sum(sizes[int(piece[0].removeprefix("data/"))] for piece in share) for share in shares]
            assert max(loads) - min(loads) <= max(sizes)
        else:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("by_bytes", [False, True])
@pytest.mark.parametrize("host_count", HOSTS)
@pytest.mark.parametrize("kind", list(SourceKind))
def test_what_a_host_has_changes_with_epoch_and_seed(kind: SourceKind, host_count: int, by_bytes: bool) -> None:
    table, _ = table_of(kind, range(1, 71), range(70))
    hosts = dealt(table, channel_of(kind, 7), host_count, by_bytes=by_bytes)
    for host in hosts:
        assert len({tuple(epoch) for epoch in host}) == EPOCHS
        assert len({frozenset(epoch) for epoch in host}) == (1 if host_count == 1 else EPOCHS)
    assert dealt(table, channel_of(kind, 8), host_count, by_bytes=by_bytes)[0] != hosts[0]


def test_one_host_gets_what_an_unsharded_channel_does() -> None:
    table, _ = table_of(SourceKind.PREFIX, range(1, 71), [])
    channel = channel_of(SourceKind.PREFIX, 7)
    assert dealt(table, channel, 1)[0] == [_content(table, channel, None, epoch) for epoch in range(EPOCHS)]
