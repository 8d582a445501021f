"""What `tls` uses of OpenSSL's public API (3.0 and later)."""

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
    ctypedef struct X509:
        pass
    ctypedef struct ASN1_TIME:
        pass
    int SSL_ERROR_SSL, SSL_ERROR_SYSCALL, SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE
    int SSL_RECEIVED_SHUTDOWN, SSL_SENT_SHUTDOWN, SSL_VERIFY_PEER, TLS1_2_VERSION
    unsigned long SSL_OP_NO_COMPRESSION, SSL_OP_NO_RENEGOTIATION, SSL_OP_IGNORE_UNEXPECTED_EOF
    unsigned long SSL_MODE_ENABLE_PARTIAL_WRITE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
    const SSL_METHOD *TLS_client_method()
    SSL_CTX *SSL_CTX_new(const SSL_METHOD *)
    void SSL_CTX_free(SSL_CTX *)
    int SSL_CTX_set_min_proto_version(SSL_CTX *, int)
    unsigned long SSL_CTX_set_options(SSL_CTX *, unsigned long)
    long SSL_CTX_set_mode(SSL_CTX *, long)
    int SSL_CTX_set_cipher_list(SSL_CTX *, const char *)
    void SSL_CTX_set_read_ahead(SSL_CTX *, int)
    void SSL_CTX_set_default_read_buffer_len(SSL_CTX *, size_t)
    int SSL_CTX_load_verify_file(SSL_CTX *, const char *)
    void SSL_CTX_set_verify(SSL_CTX *, int, void *)
    X509_VERIFY_PARAM *SSL_CTX_get0_param(SSL_CTX *)
    X509_VERIFY_PARAM *SSL_get0_param(SSL *)
    SSL *SSL_new(SSL_CTX *)
    void SSL_free(SSL *)
    void SSL_set_shutdown(SSL *, int)
    int SSL_set_fd(SSL *, int)
    long SSL_set_tlsext_host_name(SSL *, const char *)
    long SSL_get_verify_result(SSL *)
    X509 *SSL_get0_peer_certificate(const SSL *)
    const ASN1_TIME *X509_get0_notAfter(const X509 *)
    int ASN1_TIME_diff(int *, int *, const ASN1_TIME *, const ASN1_TIME *)
    int SSL_set_session(SSL *, SSL_SESSION *)
    SSL_SESSION *SSL_get0_session(const SSL *)
    SSL_SESSION *SSL_get1_session(SSL *)
    int SSL_SESSION_is_resumable(const SSL_SESSION *)
    void SSL_SESSION_free(SSL_SESSION *)
    int SSL_connect(SSL *)
    int SSL_get_error(SSL *, int)
    int SSL_has_pending(SSL *)
    int SSL_read_ex(SSL *, void *, size_t, size_t *)
    int SSL_peek_ex(SSL *, void *, size_t, size_t *)
    int SSL_write_ex(SSL *, const void *, size_t, size_t *)

cdef extern from "openssl/x509v3.h" nogil:
    unsigned int X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
    unsigned long X509_V_FLAG_PARTIAL_CHAIN, X509_V_FLAG_TRUSTED_FIRST, X509_V_FLAG_X509_STRICT
    int X509_V_OK
    int X509_VERIFY_PARAM_set_flags(X509_VERIFY_PARAM *, unsigned long)
    void X509_VERIFY_PARAM_set_hostflags(X509_VERIFY_PARAM *, unsigned int)
    int X509_VERIFY_PARAM_set1_host(X509_VERIFY_PARAM *, const char *, size_t)
    int X509_VERIFY_PARAM_set1_ip_asc(X509_VERIFY_PARAM *, const char *)
    const char *X509_verify_cert_error_string(long)

cdef extern from "openssl/err.h" nogil:
    void ERR_clear_error()
    unsigned long ERR_peek_error()
    const char *ERR_reason_error_string(unsigned long)
