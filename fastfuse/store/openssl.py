"""OpenSSL beneath Python's `ssl`: a long body is decrypted in one call without the GIL, into the caller's memory.

`ssl` takes one record (16 KiB) a call, and after each the GIL, for which thirty threads fight: 32 GETs of 8 MiB at once
get 0.6 GB/s for 2.8 CPU seconds per GB. OpenSSL's buffering BIO asks what is below it until it has all that was wanted:
2.5 GB/s for 0.55, where obstore takes 0.9. Handshake, certificates and requests stay with `ssl`.

Of OpenSSL everything here is public (1.1.0 and later). Of CPython one thing is not: where a connection keeps its
``SSL *``. That is looked for and proved, not assumed; where it is not found, or where OpenSSL is part of Python and has
no names any more (as in the Pythons that uv installs), `is_reachable` says so.
"""

import _ssl
import ctypes
import errno
import os
import ssl
import sys
from functools import cache

__all__ = ["Records", "is_reachable"]

# <openssl/bio.h>: BIO_C_SET_SSL, BIO_NOCLOSE
_SET_SSL, _NO_CLOSE = 109, 0
# Less the buffering BIO reads by way of its own memory, and with it perhaps what nobody asked for.
_OWN_BYTES = 4096
# Lengths are of type int.
_LONGEST_BYTES = 1 << 30

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
# Of each the type of what it returns, and of its arguments.
_FUNCTIONS = {
    "BIO_ctrl": (_LONG, _POINTER, _INT, _LONG, _POINTER),
    "BIO_f_buffer": (_POINTER,),
    "BIO_f_ssl": (_POINTER,),
    "BIO_free_all": (None, _POINTER),
    "BIO_new": (_POINTER, _POINTER),
    "BIO_new_socket": (_POINTER, _INT, _INT),
    "BIO_push": (_POINTER, _POINTER, _POINTER),
    "BIO_read": (_INT, _POINTER, _POINTER, _INT),
    "BIO_up_ref": (_INT, _POINTER),
    "ERR_clear_error": (None,),
    "SSL_get_SSL_CTX": (_POINTER, _POINTER),
    "SSL_get_rbio": (_POINTER, _POINTER),
    "SSL_set0_rbio": (None, _POINTER, _POINTER),
}


@cache
def is_reachable() -> bool:
    """Whether there can be `Records` with this Python."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return bool(_address_of(context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")))


class Records:
    """What comes over one TLS connection, for one thread at a time."""

    def __init__(self, tls: ssl.SSLObject, fd: int) -> None:
        """`tls` is the client's end of what comes through the socket `fd`.

        Raises:
            OSError: this connection is not found (never is, unless `is_reachable`), or there is no memory.
        """
        # For `__del__`, however far this comes.
        self._buffered = self._socket = None
        library = _library()
        address = _address_of(tls)
        if library is None or not address:
            raise ssl.SSLError("this connection is not found in OpenSSL's memory")
        self._library = library
        self._tls = tls  # its owner
        self._address = address
        self._socket = _made(library.BIO_new_socket(fd, _NO_CLOSE))
        self._buffered = _made(library.BIO_new(library.BIO_f_buffer()))
        self._unbuffered = _made(library.BIO_new(library.BIO_f_ssl()))
        # It puts the memory that `tls` reads from behind itself, so that is not to be exchanged for the socket yet.
        library.BIO_ctrl(self._unbuffered, _SET_SSL, _NO_CLOSE, address)
        library.BIO_push(self._buffered, self._unbuffered)

    def __del__(self) -> None:
        # Not before: who has been told to give up may still be in a call.
        for chain in (self._buffered, self._socket):
            if chain is not None:
                self._library.BIO_free_all(chain)

    def receive_into(self, data: memoryview) -> int:
        """Fill `data` with what is decrypted; fewer bytes where the other side ended it, or sent what is no TLS.

        The socket must block, and nothing be left in the memory that `tls` reads from otherwise.

        Raises:
            BlockingIOError: nothing came within the socket's timeout.
            OSError: the connection broke.
        """
        library = self._library
        memory = library.SSL_get_rbio(self._address)
        # Each is given away below.
        library.BIO_up_ref(memory)
        library.BIO_up_ref(self._socket)
        library.SSL_set0_rbio(self._address, self._socket)
        try:
            return self._fill(data)
        finally:
            library.SSL_set0_rbio(self._address, memory)
            # `ssl` takes what is left to this thread for an error of the connection that is next.
            library.ERR_clear_error()

    def _fill(self, data: memoryview) -> int:
        address, done = ctypes.addressof(ctypes.c_char.from_buffer(data)), 0
        while done < len(data):
            wanted_bytes = min(len(data) - done, _LONGEST_BYTES)
            chain = self._buffered if wanted_bytes > _OWN_BYTES else self._unbuffered
            ctypes.set_errno(0)
            count = self._library.BIO_read(chain, address + done, wanted_bytes)
            done += max(count, 0)
            if count < wanted_bytes:
                number = ctypes.get_errno()
                if number not in (0, errno.EINTR):
                    raise OSError(number, os.strerror(number))
                if not number and count <= 0:
                    break
        return done


@cache
def _library() -> ctypes.CDLL | None:
    """The OpenSSL that `ssl` uses, which is what the module behind it was linked with."""
    path = getattr(_ssl, "__file__", None)
    if path is None or sys.implementation.name != "cpython":
        return None
    try:
        # Only of the call that waits is the GIL worth being given away.
        library, waiting = ctypes.PyDLL(path), ctypes.CDLL(path, use_errno=True)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(waiting if name == "BIO_read" else library, name)
            function.restype, function.argtypes = result, arguments
            setattr(library, name, function)
    except (AttributeError, OSError):
        return None
    return library


def _address_of(tls: ssl.SSLObject | ssl.SSLSocket) -> int:
    """Of OpenSSL's object behind `tls`; 0 if it is not found.

    CPython has it right before the address of the context (``PySSLSocket``, Modules/_ssl.c); it is the one if its own
    context is the one that Python's has. Before that is proved nothing is done with it but to read from it.
    """
    library, context = _library(), tls.context
    words = _words_of(getattr(tls, "_sslobj", None))
    if library is None or id(context) not in words:
        return 0
    address = words[words.index(id(context)) - 1]
    return address if address and library.SSL_get_SSL_CTX(address) in _words_of(context) else 0


def _words_of(held: object) -> list[int]:
    """What a Python object consists of."""
    count = type(held).__basicsize__ // ctypes.sizeof(_POINTER)
    return [word or 0 for word in (_POINTER * count).from_address(id(held))]


def _made(address: int | None) -> int:
    if not address:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return address
