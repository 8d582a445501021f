"""Any interleaving of open, read, seek and close gives what plain files give."""

import mmap
import os
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test

from tests.reading.conftest import BORDERS, SIZES, DataSet

# Offsets are drawn near the borders as often as anywhere.
OFFSETS = st.integers(0, SIZES[-1] + 10_000) | st.builds(
    int.__add__, st.sampled_from(BORDERS), st.integers(-4096, 4096)
)
LENGTHS = st.integers(0, 10_000) | st.integers(0, 3 << 20) | st.sampled_from([4096, 128 * 1024, 1 << 20])


@dataclass(eq=False)
class Pair:
    plain: int
    mounted: int
    is_direct: bool


def _read(descriptor: int, length: int, offset: int | None) -> bytes:
    """One system call, with a buffer that O_DIRECT takes, too."""
    with mmap.mmap(-1, max(length, 1)) as buffer, memoryview(buffer)[:length] as window:
        if offset is None:
            return buffer[: os.readv(descriptor, [window])]
        return buffer[: os.preadv(descriptor, [window], offset)]


class FileMachine(RuleBasedStateMachine):
    """The mount under test, the plain files as its model."""

    files = Bundle("files")

    def __init__(self, dataset: DataSet) -> None:
        super().__init__()
        self._dataset = dataset
        self._open: list[Pair] = []

    @rule(target=files, size=st.sampled_from(SIZES), is_direct=st.booleans())
    def open(self, size: int, *, is_direct: bool) -> Pair:
        plain, mounted = self._dataset.pair(size)
        flags = os.O_RDONLY | (os.O_DIRECT if is_direct else 0)
        pair = Pair(os.open(plain, os.O_RDONLY), os.open(mounted, flags), is_direct)
        self._open.append(pair)
        return pair

    @rule(pair=files, length=LENGTHS)
    def read(self, pair: Pair, length: int) -> None:
        assert _read(pair.mounted, length, None) == _read(pair.plain, length, None)

    @rule(pair=files, length=LENGTHS, offset=OFFSETS)
    def read_at(self, pair: Pair, length: int, offset: int) -> None:
        assert _read(pair.mounted, length, offset) == _read(pair.plain, length, offset)

    @rule(pair=files, offset=OFFSETS, whence=st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]))
    def seek(self, pair: Pair, offset: int, whence: int) -> None:
        assert os.lseek(pair.mounted, offset, whence) == os.lseek(pair.plain, offset, whence)

    @rule(pair=files)
    def drop_from_page_cache(self, pair: Pair) -> None:
        os.posix_fadvise(pair.mounted, 0, 0, os.POSIX_FADV_DONTNEED)

    @rule(pair=consumes(files))
    def close(self, pair: Pair) -> None:
        self._open.remove(pair)
        os.close(pair.plain)
        os.close(pair.mounted)

    def teardown(self) -> None:
        for pair in self._open:
            os.close(pair.plain)
            os.close(pair.mounted)


def test_any_interleaving_of_calls_gives_what_plain_files_give(dataset: DataSet) -> None:
    """D1, D3"""
    run_state_machine_as_test(
        lambda: FileMachine(dataset),  # type: ignore[arg-type] # any factory will do
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )  # fmt: skip
