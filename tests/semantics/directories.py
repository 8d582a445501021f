"""A directory as the C library reads it, with the positions that Python hides."""

import ctypes
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["Directory", "Entry"]


class _Dirent(ctypes.Structure):
    """``struct dirent`` of 64-bit Linux."""

    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_uint16),
        ("d_type", ctypes.c_uint8),
        ("d_name", ctypes.c_char * 256),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = ctypes.c_void_p
_libc.readdir.restype = ctypes.POINTER(_Dirent)
_libc.readdir.argtypes = _libc.closedir.argtypes = _libc.rewinddir.argtypes = (ctypes.c_void_p,)
_libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
_libc.seekdir.restype = _libc.rewinddir.restype = None


class Entry(NamedTuple):
    name: bytes
    inode: int
    resume_offset: int


class Directory:
    """An open directory stream, ``opendir(3)``."""

    def __init__(self, path: Path) -> None:
        self._stream = _libc.opendir(os.fsencode(path))
        if not self._stream:
            raise OSError(ctypes.get_errno(), "opendir")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _libc.closedir(self._stream)

    def next(self) -> Entry | None:
        ctypes.set_errno(0)
        pointer = _libc.readdir(self._stream)
        if not pointer:
            if ctypes.get_errno():
                raise OSError(ctypes.get_errno(), "readdir")
            return None
        entry = pointer.contents
        return Entry(entry.d_name, entry.d_ino, entry.d_off)

    def rest(self) -> list[Entry]:
        return list(iter(self.next, None))

    def seek(self, offset: int) -> None:
        _libc.seekdir(self._stream, offset)

    def rewind(self) -> None:
        _libc.rewinddir(self._stream)
