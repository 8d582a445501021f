# cython: language_level=3
"""TLS for the client's connections, through OpenSSL's public API only.

Each connection owns its ``SSL`` over a socket that the caller owns. A task drives the handshake and receives short
replies without blocking. A thread receives a long body in one call without the GIL. OpenSSL reads many records with
one system call, decrypts each in place and copies it once, to the caller's memory.

Nothing here waits, retries or closes the socket. Versions before TLS 1.2, compression and renegotiation are off. A
connection that ends without close_notify looks like one that ends with it: the caller knows how long its reply is.
OpenSSL keeps the keys and wipes them when it frees the connection.

Session tickets and new keys make the socket readable, too. `recv` consumes them and raises `BlockingIOError`.
"""

import os
import sys
from errno import EAGAIN, ECONNRESET, EPROTO
from ipaddress import ip_address

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EINTR, errno

from fastfuse.s3.openssl cimport *

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #error "fastfuse needs a Python with a GIL: the free-threaded build is not supported"
    #endif
    #if OPENSSL_VERSION_NUMBER < 0x30000000L
    #error "fastfuse needs OpenSSL 3.0 or newer"
    #endif
    """

cdef enum:
    # One system call takes so much from the socket, four records: docs/MEASUREMENTS.md, "TLS read buffer".
    READ_BUFFER_BYTES = 64 << 10
    # The most that `recv` returns. `recv` holds the GIL, so all connections share the memory.
    SCRATCH_BYTES = 64 << 10
cdef char scratch[SCRATCH_BYTES]

# Python's own list (Modules/_ssl.c): forward secrecy, and keys of at least 112 bits.
cdef bytes CIPHERS = b"@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"


class TlsError(OSError):
    """TLS failed: what the other side sent is not TLS, or not what was agreed."""


class CertificateError(TlsError):
    """The server's certificate is not accepted; the text says why."""


cdef str reason():
    """Return the words for OpenSSL's first error in this thread, and leave the thread's error queue empty."""
    cdef const char *words = ERR_reason_error_string(ERR_peek_error())
    ERR_clear_error()
    return words.decode("ascii", "replace") if words != NULL else "OpenSSL gives no reason"


cdef class Session:
    """A session that a later connection to the same host may resume."""

    cdef SSL_SESSION *session

    def __dealloc__(self):
        SSL_SESSION_free(self.session)


cdef class TlsContext:
    """What the connections to one service share: trusted authorities, and sessions to resume."""

    cdef SSL_CTX *context
    cdef bint verifies
    # The newest session by host.
    cdef dict sessions

    def __cinit__(self, *, authorities: str | None):
        """`authorities` is a PEM file of trusted certificates; None accepts any certificate.

        Raises:
            OSError: the file cannot be read, or holds no certificate.
        """
        ERR_clear_error()
        self.sessions = {}
        self.verifies = authorities is not None
        self.context = SSL_CTX_new(TLS_client_method())
        if self.context == NULL or not SSL_CTX_set_cipher_list(self.context, CIPHERS):
            raise TlsError(EPROTO, reason())
        SSL_CTX_set_min_proto_version(self.context, TLS1_2_VERSION)
        SSL_CTX_set_options(
            self.context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF
        )
        SSL_CTX_set_mode(self.context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER)
        SSL_CTX_set_read_ahead(self.context, 1)
        SSL_CTX_set_default_read_buffer_len(self.context, READ_BUFFER_BYTES)
        cdef unsigned long flags
        if authorities is not None:
            # The flags of Python's own contexts: https://docs.python.org/3/library/ssl.html#ssl.create_default_context
            flags = X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN
            if sys.version_info >= (3, 13):
                flags |= X509_V_FLAG_X509_STRICT
            SSL_CTX_set_verify(self.context, SSL_VERIFY_PEER, NULL)
            X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(self.context), flags)
            self.trust(authorities)
        ERR_clear_error()

    def __dealloc__(self):
        SSL_CTX_free(self.context)

    @property
    def address(self) -> int:
        """The address of the SSL_CTX, which lives as long as this, for other compiled code."""
        return <size_t> self.context

    def trust(self, path: str) -> None:
        """Trust the certificates in the PEM file at `path`, too, from the next handshake of any thread on.

        Raises:
            OSError: the file cannot be read, or holds no certificate.
        """
        cdef bytes name = os.fsencode(path)
        open(name, "rb").close()  # the error says why it cannot be read: OpenSSL does not tell
        if not SSL_CTX_load_verify_file(self.context, name):
            raise TlsError(EPROTO, reason())


cdef class TlsConnection:
    """The client's end of one TLS connection, for one task or thread at a time (or `RuntimeError`).

    After an error other than `BlockingIOError` the connection is of no more use, and every call raises that error.
    """

    cdef SSL *tls
    cdef TlsContext context
    cdef str host
    # The session as it was last seen.
    cdef Session session
    # Whether nothing comes any more; if it broke, the error's type, number and text.
    cdef bint is_over
    cdef tuple failure
    # Whether a call without the GIL goes on.
    cdef bint is_busy

    def __cinit__(self, TlsContext context not None, int fd, str host not None):
        """`fd` is a connected socket that does not block. The caller keeps it open for as long as this is used.

        The server's certificate must be for `host`, a name or an address.

        Raises:
            TlsError: `host` is neither.
        """
        ERR_clear_error()
        self.context = context
        self.host = host
        self.tls = SSL_new(context.context)
        if self.tls == NULL or not SSL_set_fd(self.tls, fd):
            raise TlsError(EPROTO, reason())
        if not self.expect(host):
            ERR_clear_error()
            raise TlsError(EPROTO, f"{host!r} is not a host name")
        cdef Session session = context.sessions.get(host)
        if session is not None:
            SSL_set_session(self.tls, session.session)

    def __dealloc__(self):
        if self.tls != NULL:
            # OpenSSL lets nobody resume the session of a connection that ends without this. It sends nothing.
            SSL_set_shutdown(self.tls, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN)
            SSL_free(self.tls)

    cdef bint expect(self, str host) except? False:
        """Set what the certificate must be for, and return whether `host` can be that."""
        cdef X509_VERIFY_PARAM *verification = SSL_get0_param(self.tls)
        try:
            ip_address(host)
        except ValueError:
            pass
        else:
            return host.isascii() and X509_VERIFY_PARAM_set1_ip_asc(verification, host.encode()) == 1
        try:
            name = host.encode("idna")
        except UnicodeError:
            return False
        # As urllib3 has it: a certificate's names are those that it lists as such, not its subject.
        X509_VERIFY_PARAM_set_hostflags(
            verification, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
        )
        return (
            len(name) > 0
            and X509_VERIFY_PARAM_set1_host(verification, name, len(name)) == 1
            and SSL_set_tlsext_host_name(self.tls, <char *>name) == 1
        )

    def handshake(self) -> str:
        """Go on with the handshake; return "done", or "read" or "write": what to wait for before the next call.

        Raises:
            CertificateError: the server's certificate is not accepted.
            OSError: the handshake failed, or the connection broke.
        """
        cdef int result, code, number
        self.enter()
        self.is_busy = True
        with nogil:
            result = SSL_connect(self.tls)
            number = errno
        self.is_busy = False
        if result == 1:
            self.keep_session()
            ERR_clear_error()
            return "done"
        code = SSL_get_error(self.tls, result)
        if code == SSL_ERROR_WANT_READ:
            return "read"
        if code == SSL_ERROR_WANT_WRITE:
            return "write"
        self.end(code, number)
        cdef long verdict = SSL_get_verify_result(self.tls)
        if self.context.verifies and verdict != X509_V_OK:
            self.failure = (CertificateError, EPROTO, X509_verify_cert_error_string(verdict).decode())
        raise self.error()

    @property
    def days_left(self) -> int:
        """The days until the server's certificate expires; ask after the handshake."""
        cdef int days = 0, seconds = 0
        ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(SSL_get0_peer_certificate(self.tls)))
        return days

    def send(self, data: bytes) -> int:
        """Send `data` and return how many of its bytes were taken.

        Raises:
            BlockingIOError: the socket takes nothing now; call again with the same bytes.
            OSError: the connection broke.
        """
        cdef size_t count = 0
        cdef int number
        self.enter()
        if data and not SSL_write_ex(self.tls, <const char *>data, len(data), &count):
            number = errno
            self.outcome(0, SSL_get_error(self.tls, 0), number, True)
            raise self.error()
        return count

    def recv(self, most_bytes: int) -> bytes:
        """Return what has come, up to `most_bytes` or 64 KiB; empty at the end.

        Call until nothing has come before you wait for the socket: OpenSSL may hold what is left.

        Raises:
            BlockingIOError: nothing has come but part of a record, or what is TLS's own (a session ticket, a new key).
            OSError: the connection broke.
        """
        cdef size_t done = self.take(scratch, min(most_bytes, SCRATCH_BYTES))
        return PyBytes_FromStringAndSize(scratch, done)

    def recv_into(self, data: memoryview) -> int:
        """Receive into `data` as `recv` does, and return how many bytes came; 0 at the end."""
        cdef unsigned char[::1] view = data
        return self.take(<char *>&view[0], len(view)) if len(view) else 0

    def receive_all(self, data: memoryview) -> int:
        """Fill `data` in one call without the GIL; return fewer bytes where the other side ended. For a thread.

        The socket blocks, with a timeout (SO_RCVTIMEO). Shutting it down in another thread ends this call.

        Raises:
            BlockingIOError: nothing came within the timeout.
            OSError: the connection broke.
        """
        cdef unsigned char[::1] view = data
        cdef size_t size = len(view), done = 0
        cdef int code, number = 0
        if not size:
            return 0
        cdef char *target = <char *>&view[0]
        self.enter()
        self.is_busy = True
        with nogil:
            code = fill(self.tls, target, size, True, &done, &number)
        self.is_busy = False
        return self.outcome(done, code, number, True)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that was not received: no byte of a record, and not the end.

        Session tickets and new keys do not count. The socket must not block.
        """
        cdef char byte
        cdef size_t count
        cdef int code, number
        if self.is_over:
            return False
        self.enter()
        if not SSL_peek_ex(self.tls, &byte, 1, &count):
            number = errno
            code = SSL_get_error(self.tls, 0)
            if not wants(code):
                self.end(code, number)
        return not (self.is_over or SSL_has_pending(self.tls))

    cdef int enter(self) except -1:
        """Begin a call of OpenSSL: what is left in the thread's error queue would be taken for this connection's."""
        if self.is_busy:
            raise RuntimeError("another thread uses this connection")
        if self.failure is not None:
            raise self.error()
        ERR_clear_error()
        return 0

    cdef size_t take(self, char *target, size_t size) except? 0:
        """Decrypt into `target` what has come, of several records; return 0 at the end."""
        cdef size_t done = 0
        cdef int code, number = 0
        self.enter()
        code = fill(self.tls, target, size, False, &done, &number)
        return self.outcome(done, code, number, False)

    cdef size_t outcome(self, size_t done, int code, int number, bint is_whole) except? 0:
        """Return `done`, or raise what kept the bytes from coming; with some of them, only if the whole was asked for."""
        self.keep_session()
        if wants(code):
            if is_whole or not done:
                raise BlockingIOError(EAGAIN, os.strerror(EAGAIN))
        elif code:
            self.end(code, number)
            if self.failure is not None and (is_whole or not done):
                raise self.error()
        return done

    cdef end(self, int code, int number):
        """Note that the other side has ended the connection, or what broke it, by OpenSSL's code and the system's."""
        self.is_over = True
        if code == SSL_ERROR_SSL:
            self.failure = (TlsError, EPROTO, reason())
        elif code == SSL_ERROR_SYSCALL and number:
            self.failure = (OSError, number, os.strerror(number))
        ERR_clear_error()

    cdef object error(self):
        """Return a new error each time: the traceback of a kept one would keep the caller's memory."""
        kind, number, text = self.failure or (OSError, ECONNRESET, os.strerror(ECONNRESET))
        return kind(number, text)

    cdef keep_session(self):
        """Keep a new session for connections to come. A server may send tickets at any time."""
        cdef Session seen
        if self.session is None or self.session.session != SSL_get0_session(self.tls):
            seen = self.session = Session()
            seen.session = SSL_get1_session(self.tls)
            if seen.session != NULL and SSL_SESSION_is_resumable(seen.session):
                self.context.sessions[self.host] = seen


cdef int fill(SSL *tls, char *target, size_t size, bint is_whole, size_t *done, int *number) noexcept nogil:
    """Read until `target` is full, or has all that has come; return 0, or OpenSSL's code and the system's `number`."""
    cdef size_t count = 0
    cdef int code
    while done[0] < size:
        if SSL_read_ex(tls, target + done[0], size - done[0], &count):
            done[0] += count
            if not (is_whole or SSL_has_pending(tls)):
                break
            continue
        number[0] = errno
        code = SSL_get_error(tls, 0)
        if code != SSL_ERROR_WANT_READ or number[0] != EINTR:
            return code
    return 0


cdef inline bint wants(int code) noexcept nogil:
    """Return whether OpenSSL waits for the socket."""
    return code == SSL_ERROR_WANT_READ or code == SSL_ERROR_WANT_WRITE
