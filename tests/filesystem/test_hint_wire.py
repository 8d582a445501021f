"""What is sent in pieces is understood as it was meant, and what is too long is not kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.filesystem.sockets import MAX_PATH_BYTES, PathTooLongError, split_paths

names = st.binary(max_size=20).map(lambda name: name.replace(b"\0", b"/"))


@given(st.lists(names), st.lists(st.integers(1, 30), min_size=1))
def test_paths_are_the_same_however_they_are_cut(paths: list[bytes], cuts: list[int]) -> None:
    message = b"".join(path + b"\0" for path in paths)
    found, rest, at = [], b"", 0
    while at < len(message):
        size = cuts[at % len(cuts)]
        ended, rest = split_paths(rest, message[at : at + size])
        found += ended
        at += size
    assert (found, rest) == (paths, b"")


def test_a_path_may_be_as_long_as_a_key() -> None:
    path = b"x" * MAX_PATH_BYTES
    assert split_paths(path[:-1], b"x\0rest") == ([path], b"rest")


@pytest.mark.parametrize("received", [b"x", b"x\0", b"x\0y\0"])
def test_a_longer_one_is_refused_before_it_has_ended(received: bytes) -> None:
    with pytest.raises(PathTooLongError, match="more than 1024 bytes"):
        split_paths(b"x" * MAX_PATH_BYTES, received)
