from fastfuse.readahead.shelves import SmallFiles, Threads


def kept_by_threads(small_files: SmallFiles) -> dict[int, int]:
    """Have threads keep what is fetched; return it, by inode."""
    kept: dict[int, int] = {}
    small_files.threads = Threads(
        fetch=lambda inode, size_bytes: kept.setdefault(inode, size_bytes) > 0,
        drop=lambda inode: kept.pop(inode, 0) > 0,
        held=lambda: (len(kept), sum(kept.values())),
    )
    return kept


def test_a_file_for_which_there_is_no_memory_is_left_to_others() -> None:
    def no_memory(_inode: int, _size_bytes: int) -> bool:
        raise MemoryError

    small_files = SmallFiles()
    small_files.threads = Threads(fetch=no_memory)
    assert not small_files.fetch(1, 10, is_guess=True)
    assert not small_files.guesses


def test_guesses_are_counted_apart_until_they_are_adopted_or_dropped_or_there_is_another_table() -> None:
    small_files = SmallFiles()
    kept = kept_by_threads(small_files)
    assert all(small_files.fetch(inode, 10, is_guess=inode > 2) for inode in range(1, 7))
    assert (small_files.held(), small_files.held(with_guesses=False), small_files.guesses) == (
        (6, 60),
        (2, 20),
        [3, 4, 5, 6],
    )
    assert [small_files.adopt(inode) for inode in (1, 3, 3)] == [0, 10, 0]
    assert small_files.held(with_guesses=False) == (3, 30)
    kept.pop(6)  # it could not be fetched
    assert small_files.drop_guess()
    assert [*kept] == [1, 2, 3, 4]
    assert (small_files.drop(4), small_files.drop(4), small_files.drop_guess()) == (True, False, False)
    assert small_files.fetch(7, 10, is_guess=True)
    kept.clear()
    small_files.refreshed()
    assert (small_files.held(), small_files.held(with_guesses=False), small_files.guesses) == ((0, 0), (0, 0), [])
