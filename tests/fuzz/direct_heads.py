"""What `s3/direct_get.h` makes of a head: it is built at the first call, with UndefinedBehaviorSanitizer.

Each head lies before a page that may not be read. Without a compiler no head is accepted.
"""

import ctypes
import mmap
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from fastfuse.objects import ObjectRef

_SOURCE = Path(__file__).with_suffix(".c")
_SANITIZER = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
_ROOM_BYTES = 1 << 17
_PROT_NONE = 0


class _Parser:
    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="fastfuse-fuzz-") as place:
            path = Path(place, "direct_heads.so")
            command = ["gcc", "-O1", "-g", "-shared", "-fPIC", *_SANITIZER, "-o", str(path), str(_SOURCE)]
            subprocess.run([*command, "-lssl", "-lcrypto"], check=True)
            self._library = ctypes.CDLL(str(path))
        self._library.name_of.restype = ctypes.c_char_p
        self.names: list[str] = []
        while name := self._library.name_of(len(self.names)):
            self.names.append(name.decode())
        self._memory = mmap.mmap(-1, _ROOM_BYTES + mmap.PAGESIZE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(self._start + _ROOM_BYTES), mmap.PAGESIZE, _PROT_NONE):
            raise OSError("the page behind the heads can be read")

    def headers(self, head: bytes, ref: ObjectRef, start: int, end: int) -> dict[str, bytes | None] | None:
        self._memory[_ROOM_BYTES - len(head) : _ROOM_BYTES] = head
        places = (ctypes.c_ssize_t * (2 * len(self.names)))()
        at, size = ctypes.c_void_p(self._start + _ROOM_BYTES - len(head)), ctypes.c_size_t(len(head))
        numbers = map(ctypes.c_size_t, (ref.size_bytes, start, end))
        if not self._library.accepted(at, size, ref.etag.encode(), *numbers, places):
            return None
        found = zip(self.names, places[::2], places[1::2], strict=True)
        return {name: head[start : start + length] if start >= 0 else None for name, start, length in found}


@cache
def _parser() -> _Parser | None:
    return _Parser() if shutil.which("gcc") else None


def direct_headers(head: bytes, ref: ObjectRef, start: int = 0, end: int = 0) -> dict[str, bytes | None] | None:
    """Return the headers that decide about a reply with these bytes of `ref`, by default with all of them.

    There is None for each that is not there.

    None in their place: the head is not accepted, and left to Python.
    """
    parser = _parser()
    return parser.headers(head, ref, start, end) if parser is not None and len(head) < _ROOM_BYTES else None
