from hypothesis import given
from hypothesis import strategies as st

from bench.s3server.synthetic import SyntheticObjects, synthetic_bytes
from bench.s3server.xml import contents_element

_layouts = st.sampled_from(["flat", "dirs", "hex"])
_sets = st.builds(
    lambda count, layout, share, suffix: SyntheticObjects(
        count=count, size_bytes=9, layout=layout, directories=max(1, count // share), suffix=suffix
    ),
    st.integers(1, 10**12),
    _layouts,
    st.integers(1, 100_000),
    st.sampled_from(["", ".bin", "&+", "<é> "]),
)


@given(_sets, st.data())
def test_keys_ascend_and_each_is_found_at_its_own_position(objects: SyntheticObjects, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, objects.count - 1))
    key = objects.key_at(index)
    assert objects.position(key) == index
    assert objects.position(key + b"\x00") == index + 1
    found = objects.lookup(key)
    assert found is not None
    assert (found.key, found.size_bytes) == (key, 9)
    assert objects.lookup(key + b"x") is None


@given(_sets, st.booleans(), st.data())
def test_a_run_renders_as_its_objects_do(objects: SyntheticObjects, url_encoded: bool, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, objects.count - 1))
    end = min(objects.count, start + data.draw(st.integers(1, 12)))
    expected = b""
    for index in range(start, end):
        stored = objects.lookup(objects.key_at(index))
        assert stored is not None
        expected += contents_element(
            stored.key, stored.size_bytes, stored.etag, stored.modified_s, stored.storage_class, url_encoded
        )
    assert objects.contents_xml(start, end, url_encoded=url_encoded) == expected


@given(st.integers(0, 1 << 50), st.integers(0, 40 << 20), st.integers(0, 1000))
def test_bytes_do_not_depend_on_how_they_are_asked_for(start: int, length: int, offset: int) -> None:
    whole = synthetic_bytes("key", start, start + length)
    assert len(whole) == length
    offset = min(offset, length)
    assert synthetic_bytes("key", start + offset, start + length) == whole[offset:]
