# cython: language_level=3, freethreading_compatible=False
"""TLS for the client's connections, through OpenSSL's public API only.

Each connection owns its ``SSL`` over a socket that the caller owns. A task drives the handshake and takes short
replies without blocking. A thread takes a long body in one call without the GIL: one call of the system brings many
records to OpenSSL, which decrypts each in place and copies it once, to the caller's memory.

Nothing here waits, retries or closes the socket. Versions before TLS 1.2, compression and renegotiation are off. A
connection that ends without close_notify looks like one that ends with it: the caller knows how long its reply is.
Keys lie in OpenSSL's memory, which is wiped as it is freed.
"""

import os
from errno import EAGAIN, ECONNRESET, EPROTO
from ipaddress import ip_address

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EINTR, errno

__all__ = ["CertificateError", "TlsConnection", "TlsContext", "TlsError"]

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #error "fastfuse needs a Python with a GIL: the free-threaded build is not supported"
    #endif
    """

cdef extern from "openssl/ssl.h" nogil:
    ctypedef struct SSL_METHOD:
        pass
    ctypedef struct SSL_CTX:
        pass
    ctypedef struct SSL:
        pass
    ctypedef struct SSL_SESSION:
        pass
    ctypedef struct X509_VERIFY_PARAM:
        pass
    int SSL_ERROR_SYSCALL, SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE, SSL_ERROR_ZERO_RETURN
    int SSL_FILETYPE_PEM, SSL_VERIFY_PEER, TLS1_2_VERSION
    unsigned long SSL_OP_NO_COMPRESSION, SSL_OP_NO_RENEGOTIATION, SSL_OP_IGNORE_UNEXPECTED_EOF
    unsigned long SSL_MODE_ENABLE_PARTIAL_WRITE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
    const SSL_METHOD *TLS_client_method()
    SSL_CTX *SSL_CTX_new(const SSL_METHOD *)
    void SSL_CTX_free(SSL_CTX *)
    int SSL_CTX_set_min_proto_version(SSL_CTX *, int)
    unsigned long SSL_CTX_set_options(SSL_CTX *, unsigned long)
    long SSL_CTX_set_mode(SSL_CTX *, long)
    void SSL_CTX_set_read_ahead(SSL_CTX *, int)
    void SSL_CTX_set_default_read_buffer_len(SSL_CTX *, size_t)
    int SSL_CTX_load_verify_file(SSL_CTX *, const char *)
    int SSL_CTX_load_verify_dir(SSL_CTX *, const char *)
    void SSL_CTX_set_verify(SSL_CTX *, int, void *)
    X509_VERIFY_PARAM *SSL_CTX_get0_param(SSL_CTX *)
    int SSL_CTX_use_certificate_chain_file(SSL_CTX *, const char *)
    int SSL_CTX_use_PrivateKey_file(SSL_CTX *, const char *, int)
    int SSL_CTX_check_private_key(SSL_CTX *)
    SSL *SSL_new(SSL_CTX *)
    void SSL_free(SSL *)
    int SSL_set_fd(SSL *, int)
    long SSL_set_tlsext_host_name(SSL *, const char *)
    X509_VERIFY_PARAM *SSL_get0_param(SSL *)
    int SSL_set_session(SSL *, SSL_SESSION *)
    SSL_SESSION *SSL_get1_session(SSL *)
    int SSL_SESSION_is_resumable(const SSL_SESSION *)
    void SSL_SESSION_free(SSL_SESSION *)
    int SSL_session_reused(SSL *)
    const char *SSL_get_version(SSL *)
    int SSL_connect(SSL *)
    int SSL_read_ex(SSL *, void *, size_t, size_t *)
    int SSL_write_ex(SSL *, const void *, size_t, size_t *)
    int SSL_get_error(SSL *, int)
    int SSL_has_pending(SSL *)
    long SSL_get_verify_result(SSL *)

cdef extern from "openssl/x509v3.h" nogil:
    unsigned int X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
    unsigned long X509_V_FLAG_PARTIAL_CHAIN, X509_V_FLAG_TRUSTED_FIRST
    int X509_V_OK
    int X509_VERIFY_PARAM_set_flags(X509_VERIFY_PARAM *, unsigned long)
    void X509_VERIFY_PARAM_set_hostflags(X509_VERIFY_PARAM *, unsigned int)
    int X509_VERIFY_PARAM_set1_host(X509_VERIFY_PARAM *, const char *, size_t)
    int X509_VERIFY_PARAM_set1_ip_asc(X509_VERIFY_PARAM *, const char *)
    const char *X509_verify_cert_error_string(long)

cdef extern from "openssl/err.h" nogil:
    void ERR_clear_error()
    unsigned long ERR_peek_last_error()
    const char *ERR_reason_error_string(unsigned long)

# One call of the system takes so much from the socket, sixteen records: docs/MEASUREMENTS.md, "TLS read buffer".
DEF READ_BUFFER_BYTES = 256 << 10
# The most that `recv` returns. Every call of it holds the GIL, so all connections share the memory.
DEF SCRATCH_BYTES = 64 << 10
cdef char scratch[SCRATCH_BYTES]


class TlsError(OSError):
    """TLS failed: what the other side sent is not TLS, or not what was agreed."""


class CertificateError(TlsError):
    """The server's certificate is not accepted; the text says why."""


cdef object failure(str what):
    """Return the error of OpenSSL's last failure in this thread, and leave the thread's error queue empty."""
    cdef const char *reason = ERR_reason_error_string(ERR_peek_last_error())
    text = reason.decode("ascii", "replace") if reason != NULL else what
    ERR_clear_error()
    return TlsError(EPROTO, text)


cdef class Session:
    """A session that a later connection to the same host may resume."""

    cdef SSL_SESSION *session

    def __dealloc__(self):
        SSL_SESSION_free(self.session)


cdef class TlsContext:
    """What the connections to one service share: trusted authorities, a client certificate, sessions to resume."""

    cdef SSL_CTX *context
    cdef bint verifies
    # The newest session by host.
    cdef dict sessions

    def __cinit__(
        self, *, authorities: str | None, certificate: str | None = None, private_key: str | None = None
    ):
        """`authorities` is a PEM file or a directory of trusted certificates; None accepts any certificate.

        `certificate` and `private_key` are PEM files of a client certificate; the first may hold both.

        Raises:
            OSError: a file cannot be read, or holds no certificate or key.
        """
        ERR_clear_error()
        self.sessions = {}
        self.verifies = authorities is not None
        self.context = SSL_CTX_new(TLS_client_method())
        if self.context == NULL:
            raise failure("no TLS context")
        SSL_CTX_set_min_proto_version(self.context, TLS1_2_VERSION)
        SSL_CTX_set_options(
            self.context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF
        )
        SSL_CTX_set_mode(self.context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER)
        SSL_CTX_set_read_ahead(self.context, 1)
        SSL_CTX_set_default_read_buffer_len(self.context, READ_BUFFER_BYTES)
        if authorities is not None:
            self.trust(os.fsencode(authorities))
        if certificate is not None:
            self.identify(os.fsencode(certificate), os.fsencode(private_key or certificate))

    def __dealloc__(self):
        SSL_CTX_free(self.context)

    cdef trust(self, bytes path):
        cdef int loaded
        os.stat(path)
        if os.path.isdir(path):
            loaded = SSL_CTX_load_verify_dir(self.context, path)
        else:
            loaded = SSL_CTX_load_verify_file(self.context, path)
        if not loaded:
            raise failure("no certificate authorities")
        SSL_CTX_set_verify(self.context, SSL_VERIFY_PEER, NULL)
        # As Python's own contexts do: https://docs.python.org/3/library/ssl.html#ssl.create_default_context
        X509_VERIFY_PARAM_set_flags(
            SSL_CTX_get0_param(self.context), X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN
        )

    cdef identify(self, bytes certificate, bytes private_key):
        os.stat(certificate)
        os.stat(private_key)
        if not (
            SSL_CTX_use_certificate_chain_file(self.context, certificate)
            and SSL_CTX_use_PrivateKey_file(self.context, private_key, SSL_FILETYPE_PEM)
            and SSL_CTX_check_private_key(self.context)
        ):
            raise failure("no client certificate")


cdef class TlsConnection:
    """The client's end of one TLS connection. One task or thread at a time may use it."""

    cdef SSL *tls
    cdef TlsContext context
    cdef str host
    # Whether the other side has said, or shown, that nothing comes any more; whether its session was kept.
    cdef bint is_over, has_session

    def __cinit__(self, TlsContext context not None, int fd, str host not None):
        """`fd` is a connected socket that does not block; it stays the caller's, and is open as long as this is used.

        `host` is the name, or the address, that the server's certificate must be for.

        Raises:
            TlsError: `host` is neither.
        """
        ERR_clear_error()
        self.context = context
        self.host = host
        self.tls = SSL_new(context.context)
        if self.tls == NULL or not SSL_set_fd(self.tls, fd):
            raise failure("no TLS connection")
        cdef X509_VERIFY_PARAM *verification = SSL_get0_param(self.tls)
        cdef bint is_address = True
        try:
            ip_address(host)
        except ValueError:
            is_address = False
        try:
            name = host.encode("ascii" if is_address else "idna")
        except UnicodeError:
            raise TlsError(EPROTO, f"{host!r} is not a host name") from None
        if is_address:
            is_set = X509_VERIFY_PARAM_set1_ip_asc(verification, name)
        else:
            X509_VERIFY_PARAM_set_hostflags(verification, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS)
            is_set = (
                name and X509_VERIFY_PARAM_set1_host(verification, name, len(name))
                and SSL_set_tlsext_host_name(self.tls, <char *>name)
            )
        if not is_set:
            ERR_clear_error()
            raise TlsError(EPROTO, f"{host!r} is not a host name")
        cdef Session session = context.sessions.get(host)
        if session is not None:
            SSL_set_session(self.tls, session.session)

    def __dealloc__(self):
        SSL_free(self.tls)

    def handshake(self) -> str:
        """Go on with the handshake; return "done", or "read" or "write": what to wait for before the next call.

        Raises:
            CertificateError: the server's certificate is not accepted.
            OSError: the handshake failed, or the connection broke.
        """
        ERR_clear_error()
        cdef int result, code, number
        cdef long verdict
        with nogil:
            result = SSL_connect(self.tls)
            number = errno
        if result == 1:
            return "done"
        code = SSL_get_error(self.tls, result)
        if code == SSL_ERROR_WANT_READ:
            return "read"
        if code == SSL_ERROR_WANT_WRITE:
            return "write"
        verdict = SSL_get_verify_result(self.tls)
        if self.context.verifies and verdict != X509_V_OK:
            ERR_clear_error()
            raise CertificateError(EPROTO, X509_verify_cert_error_string(verdict).decode())
        raise self.broken(code, number)

    def send(self, data: bytes) -> int:
        """Send `data` and return how many of its bytes were taken.

        Raises:
            BlockingIOError: the socket takes nothing now; call again with the same bytes.
            OSError: the connection broke.
        """
        cdef const unsigned char[::1] view = data
        cdef size_t count = 0
        if not len(view):
            return 0
        ERR_clear_error()
        cdef int result = SSL_write_ex(self.tls, &view[0], len(view), &count)
        cdef int number = errno
        if not result:
            raise self.broken(SSL_get_error(self.tls, result), number)
        return count

    def recv(self, most_bytes: int) -> bytes:
        """Return what has come, up to `most_bytes` or 64 KiB; empty at the end.

        What is left then, as `is_quiet` tells, must be received before the caller waits for more.

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
        cdef size_t size = len(view), done = 0, count = 0
        cdef int result = 1, code = 0, number = 0
        if not size:
            return 0
        with nogil:
            ERR_clear_error()
            while done < size:
                result = SSL_read_ex(self.tls, &view[done], size - done, &count)
                if result:
                    done += count
                    continue
                number = errno
                code = SSL_get_error(self.tls, result)
                if not (code == SSL_ERROR_WANT_READ and number == EINTR):
                    break
        if not result:
            self.end(code, number)
        return done

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that was not received: no byte of a record, and not the end."""
        return not (self.is_over or SSL_has_pending(self.tls))

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake resumed a session."""
        return SSL_session_reused(self.tls) == 1

    @property
    def version(self) -> str:
        """The protocol version, such as "TLSv1.3"."""
        return SSL_get_version(self.tls).decode()

    cdef size_t take(self, char *target, size_t size) except? 0:
        """Decrypt into `target` what has come, of several records; return 0 at the end."""
        cdef size_t done = 0, count = 0
        cdef int number, code
        ERR_clear_error()
        while done < size:
            if not SSL_read_ex(self.tls, target + done, size - done, &count):
                number = errno
                code = SSL_get_error(self.tls, 0)
                if done and (code == SSL_ERROR_WANT_READ or code == SSL_ERROR_WANT_WRITE):
                    break
                self.end(code, number)
                break
            done += count
            if not SSL_has_pending(self.tls):
                break
        if done and not self.has_session:
            self.keep_session()
        return done

    cdef end(self, int code, int number):
        """Note that the other side has ended the connection, or raise what else `code` says."""
        if code == SSL_ERROR_ZERO_RETURN or (code == SSL_ERROR_SYSCALL and not number):
            self.is_over = True
            ERR_clear_error()
        else:
            raise self.broken(code, number)

    cdef object broken(self, int code, int number):
        """Return the error that `code`, OpenSSL's, and `number`, the system's, stand for."""
        if code == SSL_ERROR_WANT_READ or code == SSL_ERROR_WANT_WRITE:
            return BlockingIOError(EAGAIN, os.strerror(EAGAIN))
        self.is_over = True
        if code == SSL_ERROR_SYSCALL or code == SSL_ERROR_ZERO_RETURN:
            ERR_clear_error()
            number = number or ECONNRESET
            return OSError(number, os.strerror(number))
        return failure("TLS failed")

    cdef keep_session(self):
        """Keep the session for connections to come. A server's tickets come with its first reply."""
        cdef Session kept = Session()
        kept.session = SSL_get1_session(self.tls)
        self.has_session = True
        if kept.session != NULL and SSL_SESSION_is_resumable(kept.session):
            self.context.sessions[self.host] = kept
