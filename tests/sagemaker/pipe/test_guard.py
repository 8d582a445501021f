import os
import select

from fastfuse.sagemaker.pipe.fifo import Guard


def is_over(reading_fd: int) -> bool:
    """Whether nobody has the other end open; nothing is ever written there."""
    return bool(select.select([reading_fd], [], [], 0)[0])


def test_what_is_held_has_no_end_until_it_is_let_go_the_earliest_first() -> None:
    guard = Guard()
    pipes = [os.pipe() for _ in range(2)]
    for _, writing_fd in pipes:
        guard.hold(writing_fd)
        os.close(writing_fd)
    guard.update()
    readers = [reading_fd for reading_fd, _ in pipes]
    assert [is_over(fd) for fd in readers] == [False, False]
    guard.let_go()
    assert select.select([guard], [], [], 0)[0] == [guard]
    guard.update()
    assert [is_over(fd) for fd in readers] == [True, False]
    guard.close()
    assert [is_over(fd) for fd in readers] == [True, True]
    for fd in readers:
        os.close(fd)


def test_what_was_held_last_before_a_death_is_held() -> None:
    guard = Guard()
    reading_fd, writing_fd = os.pipe()
    guard.hold(writing_fd)
    os.close(writing_fd)
    # Nobody has looked yet.
    assert not is_over(reading_fd)
    guard.close()
    assert is_over(reading_fd)
    os.close(reading_fd)
