"""What an index shows of its source, in words that differ where the indexes do."""

from itertools import combinations

from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.shard import Shard

AUGMENTED = SourceKind.AUGMENTED_MANIFEST


def test_no_two_origins_that_show_something_else_have_the_same_view() -> None:
    names = [(), ("a",), ("b",), ("a", "b"), ("b", "a"), ("a b",), ('a" "b',), ("part 1/1 by count",)]
    shards = [None, Shard(index=0, count=1), Shard(index=0, count=1, by_bytes=True), Shard(index=0, count=2)]
    origins = [IndexOrigin(kind=AUGMENTED, attribute_names=one, shard=shard) for one in names for shard in shards]
    origins += [
        IndexOrigin(kind=kind, shard=shard) for kind in (SourceKind.PREFIX, SourceKind.MANIFEST) for shard in shards
    ]
    origins += [IndexOrigin(is_key_name_prefix=True, shard=shard) for shard in shards]
    assert all(one.view != other.view for one, other in combinations(origins, 2))


def test_all_of_a_prefix_is_listed_and_only_the_part_of_a_manifest() -> None:
    shard = Shard(index=1, count=3)
    assert IndexOrigin(shard=shard).listed_view == ""
    assert IndexOrigin(is_key_name_prefix=True, shard=shard).listed_view == "key name prefix"
    assert IndexOrigin(kind=SourceKind.MANIFEST, shard=shard).listed_view == "ManifestFile part 2/3 by count"
