"""What a worker shows: whole, whoever writes and dies."""

import threading

from fastfuse.filesystem.board import Board


def test_it_shows_what_was_written_last() -> None:
    board = Board()
    assert board.read() == {}
    board.show({"trouble": None})
    board.show({"trouble": {"since": 1.5}})
    assert board.read() == {"trouble": {"since": 1.5}}


def test_what_a_writer_left_half_is_nothing_until_the_next_one_writes() -> None:
    board = Board()
    board.show({"a": 1})
    board._memory[0:4] = (7).to_bytes(4, "little")
    assert board.read() == {}
    board.show({"a": 2})
    assert board.read() == {"a": 2}


def test_what_is_longer_than_the_memory_is_not_shown() -> None:
    board = Board()
    board.show({"a": 1})
    board.show({"a": "x" * (64 << 10)})
    assert board.read() == {"a": 1}


def test_a_reader_never_sees_parts_of_two() -> None:
    board, is_over = Board(), threading.Event()
    values = [{"value": str(digit) * length} for digit in range(10) for length in (10, 5000)]
    board.show(values[0])

    def write() -> None:
        while not is_over.is_set():
            for value in values:
                board.show(value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [board.read() for _ in range(2000)]
    finally:
        is_over.set()
        writer.join()
    assert all(value in values for value in seen if value)
