from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

HANDLE_INODE_BITS: int

def answer_from(
    columns: Mapping[str, npt.NDArray[np.generic]],
    *,
    uid: int,
    gid: int,
    directory_mode: int,
    file_mode: int,
    block_bytes: int,
    timeout_s: float,
    answered: memoryview,
    etags: tuple[str, ...] = (),
    unread_classes: bytes = ...,
    draining: memoryview | None = None,
) -> None: ...
def tell_of_reads(tell: Callable[[], None]) -> None: ...
def take_reads(take: Callable[[int, int, int, int, int, bool], None] | None) -> None: ...
def object_at(inode: int) -> tuple[bytes, bytes, int] | None: ...
def found(parent: int, name: bytes) -> int | None: ...
def attributes(inode: int) -> tuple[int, int, int] | None: ...
def size_of_small(inode: int) -> int: ...
def fetch_ahead(inode: int, data: memoryview) -> bool: ...
