/* GETs of whole small objects, and of parts of large ones, over a blocking connection, for a thread without the GIL: see
   filesystem/kernel/direct_reads.pyx.

   A GET is sent and its reply compared with what is expected. Whatever is unusual ends the connection and is left to the
   client in Python (s3/client.py), which asks again and decides: so nothing here judges, retries or tells. What is
   accepted here is a part of what the client accepts (s3/http1.py, s3/checks.py, s3/integrity.py). */

#ifndef FASTFUSE_DIRECT_GET_H
#define FASTFUSE_DIRECT_GET_H

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

/* A longer head is left to the client. S3 sends 500 bytes. */
#define DIRECT_HEAD_BYTES 8192
/* A body that drips is left to the client after so many times the silence that ends a GET. */
#define DIRECT_MOST_SILENCES 8
#define DIRECT_MOST_LINES 256
#define DIRECT_MOST_REASON 256
/* A key of 1,024 bytes, each encoded as three, behind the path of the endpoint. */
#define DIRECT_PATH_BYTES 4096
#define DIRECT_ETAG_BYTES 256
#define DIRECT_REQUEST_BYTES (16 << 10)

/* What comes with the head of a part is copied, so less is received there. A thread that waits for the rest sleeps until
   so much has come (SO_RCVLOWAT): s3/connection.py. */
#define DIRECT_FIRST_BYTES 4096
#define DIRECT_WAKING_BYTES (256 << 10)
#define DIRECT_TLS_WAKING_BYTES (64 << 10) /* OpenSSL asks for no more at once: tls.pyx */

/* After so much silence the kernel asks whether the other side is still there. A firewall or NAT then remembers the
   connection: most do for minutes. As in routes.py. */
#define DIRECT_ASK_AFTER_S 60

/* As many as S3 names at once. */
#define DIRECT_MOST_ADDRESSES 8

typedef struct { const char *at; size_t bytes; } direct_text;

/* The way of requests to the bucket, for a minute: nobody changes it while threads use it. */
typedef struct {
    int uses;
    int64_t ends_ns;             /* CLOCK_MONOTONIC */
    int64_t patience_ns;         /* the silence that ends the GET of a whole object, and that of a part */
    int64_t part_patience_ns, part_limit_ns; /* and how long one may take in all: `direct_fill` */
    struct sockaddr_storage addresses[DIRECT_MOST_ADDRESSES];
    int address_count;
    SSL_CTX *tls;                /* NULL: plain HTTP */
    char host[256];              /* whose certificate is expected */
    int port;
    int is_address;
    /* The request before and behind the path, and behind the signature; the text before and behind the path in the
       canonical request, and before its hash in the string to sign. `key` is empty where nothing is signed. */
    direct_text before, behind, canonical_before, canonical_behind, before_hash, key;
    EVP_MD_CTX *inner, *outer;   /* the two hashes of HMAC, begun with the key */
    char *texts;
    size_t texts_bytes;
} direct_route;

typedef struct {
    int fd;                      /* -1: there is none */
    SSL *tls;
    /* Where it leads. */
    char host[256];
    int port;
    int64_t patience_ns;         /* what its socket waits for */
    unsigned turn;               /* which of the addresses: connections spread over them, and go on to the next */
    EVP_MD_CTX *hash;
} direct_connection;

typedef struct {
    char path[DIRECT_PATH_BYTES];
    size_t path_bytes;
    char etag[DIRECT_ETAG_BYTES];
    size_t etag_bytes;
    size_t size_bytes;
    int64_t modified_s;          /* only its name in the local tier has this */
    /* The part that is asked for, and where its bytes go; without a target it is the whole object. */
    uint64_t start;
    size_t part_bytes;
    char *target;
} direct_object;

static int64_t direct_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

/* CRCs: slicing by eight (Kounavis and Berry, 2005), of any reflected polynomial of up to 64 bits. */

typedef struct { uint64_t polynomial, ones; uint64_t table[8][256]; } direct_crc;
static direct_crc direct_crcs[3] = {
    {0x9a6c9329ac4bc9b5, ~0ull, {{0}}}, {0x82f63b78, 0xffffffff, {{0}}}, {0xedb88320, 0xffffffff, {{0}}},
};

static inline void direct_make_crcs(void)
{
    for (direct_crc *crc = direct_crcs; crc < direct_crcs + 3; crc++) {
        for (int byte = 0; byte < 256; byte++) {
            uint64_t value = byte;
            for (int bit = 0; bit < 8; bit++)
                value = value >> 1 ^ (value & 1 ? crc->polynomial : 0);
            crc->table[0][byte] = value;
        }
        for (int byte = 0; byte < 256; byte++)
            for (int slice = 1; slice < 8; slice++)
                crc->table[slice][byte] =
                    crc->table[slice - 1][byte] >> 8 ^ crc->table[0][crc->table[slice - 1][byte] & 255];
    }
}

static uint64_t direct_crc_of(const direct_crc *crc, const uint8_t *data, size_t bytes)
{
    uint64_t value = crc->ones, word;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        memcpy(&word, data, 8);
        word = le64toh(word) ^ value;
        value = 0;
        for (int slice = 0; slice < 8; slice++)
            value ^= crc->table[7 - slice][word >> 8 * slice & 255];
    }
    for (; bytes; data++, bytes--)
        value = value >> 8 ^ crc->table[0][(value ^ *data) & 255];
    return value ^ crc->ones;
}

/* The headers that the client decides by, each of which may come once (s3/http1.py), the checksums first. */
static const char *const direct_names[] = {
    "x-amz-checksum-crc64nvme", "x-amz-checksum-crc32c", "x-amz-checksum-crc32", "x-amz-checksum-sha1",
    "x-amz-checksum-sha256", "content-length", "etag", "content-range", "transfer-encoding", "x-amz-checksum-type",
    "content-encoding", "last-modified", "location", "x-amz-bucket-region", "x-amz-mp-parts-count",
    "x-amz-storage-class", "connection",
};
enum { DIRECT_SHA1 = 3, DIRECT_SHA256, DIRECT_LENGTH, DIRECT_ETAG, DIRECT_RANGE, DIRECT_ENCODING, DIRECT_TYPE,
       DIRECT_CONNECTION = 16, DIRECT_NAMES };

/* Return whether `data` has the checksum in `headers`, if there is one: `is_checked` tells. */
static int direct_is_right(const direct_text *headers, const uint8_t *data, size_t bytes, int *is_checked)
{
    uint8_t digest[EVP_MAX_MD_SIZE], text[4 * EVP_MAX_MD_SIZE / 3 + 4];
    unsigned int digest_bytes = 0;
    *is_checked = 0;
    if (headers[DIRECT_TYPE].at && headers[DIRECT_TYPE].bytes == 9 && !memcmp(headers[DIRECT_TYPE].at, "COMPOSITE", 9))
        return 1;
    for (int name = 0; name <= DIRECT_SHA256; name++)
        if (headers[name].at && memchr(headers[name].at, '-', headers[name].bytes))
            return 1; /* that of the parts of its upload */
    for (int name = 0; name <= DIRECT_SHA256; name++) {
        if (!headers[name].at)
            continue;
        if (name < DIRECT_SHA1) {
            uint64_t crc = direct_crc_of(&direct_crcs[name], data, bytes);
            for (digest_bytes = name ? 4 : 8; crc || digest_bytes; crc >>= 8)
                digest[--digest_bytes] = crc;
            digest_bytes = name ? 4 : 8;
        } else if (!EVP_Digest(
                       data, bytes, digest, &digest_bytes, name == DIRECT_SHA1 ? EVP_sha1() : EVP_sha256(), NULL))
            return 0;
        *is_checked = 1;
        size_t length = EVP_EncodeBlock(text, digest, digest_bytes);
        return length == headers[name].bytes && !memcmp(text, headers[name].at, length);
    }
    return 1;
}

/* Take the head of `bytes` apart, without the empty line at its end. Return whether it is plain, with the status
   `code`. */
static int direct_parse(const char *head, size_t bytes, const char *code, direct_text *headers, int *status)
{
    const char *line = head, *end = head + bytes;
    int lines = 0;
    memset(headers, 0, DIRECT_NAMES * sizeof *headers);
    for (int at = 9; at < 12 && bytes > 12 && head[at] >= '0' && head[at] <= '9'; at++)
        *status = 10 * *status + head[at] - '0';
    while (line < end) {
        const char *stop = line, *colon = NULL;
        for (; stop < end && *stop != '\r'; stop++) {
            unsigned char letter = *stop;
            if ((letter < ' ' && letter != '\t') || letter == 127)
                return 0;
            if (letter == ':' && !colon)
                colon = stop;
        }
        if (stop + 1 >= end ? stop != end : stop[1] != '\n')
            return 0;
        if (!lines++) {
            if (stop - line < 12 || memcmp(line, "HTTP/1.1 ", 9) || memcmp(line + 9, code, 3) ||
                stop - line > 13 + DIRECT_MOST_REASON)
                return 0;
            if (stop - line > 12 && line[12] != ' ')
                return 0;
        } else {
            if (!colon || colon == line || memchr(line, ' ', colon - line) || memchr(line, '\t', colon - line))
                return 0;
            for (int name = 0; name < DIRECT_NAMES; name++) {
                if (strlen(direct_names[name]) != (size_t) (colon - line))
                    continue;
                if (strncasecmp(direct_names[name], line, colon - line))
                    continue;
                if (headers[name].at)
                    return 0;
                const char *begin = colon + 1, *last = stop;
                while (begin < last && (*begin == ' ' || *begin == '\t'))
                    begin++;
                while (last > begin && (last[-1] == ' ' || last[-1] == '\t'))
                    last--;
                headers[name].at = begin;
                headers[name].bytes = last - begin;
            }
        }
        if (lines > DIRECT_MOST_LINES)
            return 0;
        line = stop + 2;
    }
    return lines > 0;
}

static int direct_equals(const direct_text *header, const char *expected, int bytes)
{
    return header->at && header->bytes == (size_t) bytes && !memcmp(header->at, expected, bytes);
}

/* Return whether the head says that what is asked for of `object` follows, in the listed version and as it is. */
static int direct_is_of(const direct_text *headers, const direct_object *object)
{
    char length[24], range[96];
    int length_bytes = snprintf(
        length, sizeof length, "%zu", object->target ? object->part_bytes : object->size_bytes);
    int range_bytes = snprintf(
        range, sizeof range, "bytes %llu-%llu/%zu", (unsigned long long) object->start,
        (unsigned long long) (object->start + object->part_bytes - 1), object->size_bytes);
    return direct_equals(&headers[DIRECT_LENGTH], length, length_bytes) && !headers[DIRECT_ENCODING].at &&
           direct_equals(&headers[DIRECT_ETAG], object->etag, object->etag_bytes) &&
           (object->target ? direct_equals(&headers[DIRECT_RANGE], range, range_bytes) : !headers[DIRECT_RANGE].at);
}

/* Connections */

static void direct_close(direct_connection *connection)
{
    if (connection->tls) {
        SSL_set_shutdown(connection->tls, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
        SSL_free(connection->tls);
        connection->tls = NULL;
    }
    if (connection->fd >= 0)
        close(connection->fd);
    connection->fd = -1;
}

static ssize_t direct_receive(direct_connection *connection, char *data, size_t bytes)
{
    size_t count = 0;
    if (!connection->tls)
        return recv(connection->fd, data, bytes, 0);
    return SSL_read_ex(connection->tls, data, bytes, &count) ? (ssize_t) count : -1;
}

/* Return whether an idle connection is still open, and nothing came that nobody asked for. */
static int direct_is_fresh(direct_connection *connection)
{
    struct pollfd poll_fd = {.fd = connection->fd, .events = POLLIN};
    char byte;
    if (connection->tls && SSL_has_pending(connection->tls))
        return 0;
    if (!poll(&poll_fd, 1, 0))
        return 1;
    if (!connection->tls)
        return 0;
    /* A session ticket, or a new key. */
    int flags = fcntl(connection->fd, F_GETFL), result;
    fcntl(connection->fd, F_SETFL, flags | O_NONBLOCK);
    result = SSL_peek(connection->tls, &byte, 1);
    result = result <= 0 && SSL_get_error(connection->tls, result) == SSL_ERROR_WANT_READ;
    fcntl(connection->fd, F_SETFL, flags);
    return result;
}

static int direct_secure(direct_connection *connection, const direct_route *route)
{
    SSL *tls = connection->tls = SSL_new(route->tls);
    if (!tls || !SSL_set_fd(tls, connection->fd))
        return 0;
    X509_VERIFY_PARAM *expected = SSL_get0_param(tls);
    if (route->is_address) {
        if (X509_VERIFY_PARAM_set1_ip_asc(expected, route->host) != 1)
            return 0;
    } else {
        X509_VERIFY_PARAM_set_hostflags(
            expected, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        if (X509_VERIFY_PARAM_set1_host(expected, route->host, strlen(route->host)) != 1 ||
            SSL_set_tlsext_host_name(tls, route->host) != 1)
            return 0;
    }
    return SSL_connect(tls) == 1;
}

static void direct_set_patience(direct_connection *connection, int64_t patience_ns)
{
    struct timeval patience = {patience_ns / 1000000000, patience_ns % 1000000000 / 1000};
    setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    connection->patience_ns = patience_ns;
}

/* Connect to the first address, from that of `turn` on, that does not refuse at once. */
static int direct_connect(direct_connection *connection, const direct_route *route)
{
    int one = 1, ask_after_s = DIRECT_ASK_AFTER_S;
    memcpy(connection->host, route->host, sizeof route->host);
    connection->port = route->port;
    for (int tries = 0; tries < route->address_count; tries++, connection->turn++) {
        const struct sockaddr_storage *address = &route->addresses[connection->turn % route->address_count];
        socklen_t address_bytes =
            address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        connection->fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection->fd < 0)
            continue;
        setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(connection->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        setsockopt(connection->fd, IPPROTO_TCP, TCP_KEEPIDLE, &ask_after_s, sizeof ask_after_s);
        direct_set_patience(connection, route->patience_ns);
        if (!connect(connection->fd, (const struct sockaddr *) address, address_bytes))
            return !route->tls || direct_secure(connection, route);
        if (errno == EINPROGRESS || errno == ETIMEDOUT) /* it took all the time that there is */
            return 0;
        direct_close(connection);
    }
    return 0;
}

static inline void direct_free_route(direct_route *route)
{
    EVP_MD_CTX_free(route->inner);
    EVP_MD_CTX_free(route->outer);
    OPENSSL_cleanse(route->texts, route->texts_bytes);
    free(route->texts);
    free(route);
}

/* Begin the two hashes of HMAC-SHA256 with the key of the route (RFC 2104); return 0 where there is no room. */
static inline int direct_begin_mac(direct_route *route)
{
    uint8_t inner[64] = {0}, outer[64] = {0};
    if (route->key.bytes > sizeof inner)
        return 0;
    memcpy(inner, route->key.at, route->key.bytes);
    for (int at = 0; at < 64; at++) {
        outer[at] = inner[at] ^ 0x5c;
        inner[at] ^= 0x36;
    }
    route->inner = EVP_MD_CTX_new();
    route->outer = EVP_MD_CTX_new();
    int is_begun = route->inner && route->outer && EVP_DigestInit_ex(route->inner, EVP_sha256(), NULL) &&
                   EVP_DigestUpdate(route->inner, inner, 64) && EVP_DigestInit_ex(route->outer, EVP_sha256(), NULL) &&
                   EVP_DigestUpdate(route->outer, outer, 64);
    OPENSSL_cleanse(inner, sizeof inner);
    OPENSSL_cleanse(outer, sizeof outer);
    return is_begun;
}

static void direct_write_hex(const uint8_t *digest, char *hex)
{
    for (int at = 0; at < 32; at++) {
        hex[2 * at] = "0123456789abcdef"[digest[at] >> 4];
        hex[2 * at + 1] = "0123456789abcdef"[digest[at] & 15];
    }
    hex[64] = 0;
}

/* Return the bytes of the request that are in `request`, or 0. */
static size_t direct_write_request(
    direct_connection *connection, const direct_route *route, const direct_object *object, char *request)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    char hex[65];
    unsigned int bytes;
    EVP_MD_CTX *hash = connection->hash;
    hex[0] = 0;
    if (route->key.bytes) {
        if (!EVP_DigestInit_ex(hash, EVP_sha256(), NULL) ||
            !EVP_DigestUpdate(hash, route->canonical_before.at, route->canonical_before.bytes) ||
            !EVP_DigestUpdate(hash, object->path, object->path_bytes) ||
            !EVP_DigestUpdate(hash, route->canonical_behind.at, route->canonical_behind.bytes) ||
            !EVP_DigestFinal_ex(hash, digest, &bytes))
            return 0;
        direct_write_hex(digest, hex);
        if (!EVP_MD_CTX_copy_ex(hash, route->inner) ||
            !EVP_DigestUpdate(hash, route->before_hash.at, route->before_hash.bytes) ||
            !EVP_DigestUpdate(hash, hex, 64) || !EVP_DigestFinal_ex(hash, digest, &bytes) ||
            !EVP_MD_CTX_copy_ex(hash, route->outer) || !EVP_DigestUpdate(hash, digest, 32) ||
            !EVP_DigestFinal_ex(hash, digest, &bytes))
            return 0;
        direct_write_hex(digest, hex);
    }
    char range[64] = "";
    if (object->target)
        snprintf(range, sizeof range, "range: bytes=%llu-%llu\r\n", (unsigned long long) object->start,
                 (unsigned long long) (object->start + object->part_bytes - 1));
    int length = snprintf(
        request, DIRECT_REQUEST_BYTES, "%.*s%.*s%.*s%s%s%sif-match: %.*s\r\n\r\n", (int) route->before.bytes,
        route->before.at, (int) object->path_bytes, object->path, (int) route->behind.bytes, route->behind.at, hex,
        hex[0] ? "\r\n" : "", range, (int) object->etag_bytes, object->etag);
    return length > 0 && length < DIRECT_REQUEST_BYTES ? length : 0;
}

static int direct_send(direct_connection *connection, const char *data, size_t bytes)
{
    size_t count = 0;
    if (!connection->tls)
        return send(connection->fd, data, bytes, MSG_NOSIGNAL) == (ssize_t) bytes;
    return SSL_write_ex(connection->tls, data, bytes, &count) && count == bytes;
}

/* Receive `bytes` into `target`, and return whether they came in time: until `ends_ns` and the share of `more_ns` that has
   come of them. A body that drips ends early so, and one that comes steadily over a slow link does not. */
static int direct_fill(
    direct_connection *connection, char *target, size_t bytes, int64_t ends_ns, int64_t more_ns)
{
    size_t all_bytes = bytes;
    int was_waking = 0, most = connection->tls ? DIRECT_TLS_WAKING_BYTES : DIRECT_WAKING_BYTES;
    /* As many may lie in OpenSSL's buffer, and do not come any more. */
    size_t held = connection->tls ? DIRECT_TLS_WAKING_BYTES : 0;
    while (bytes) {
        size_t count = 0;
        /* Nothing follows the last bytes, so they alone have to wake the thread. */
        int waking = bytes > most + held ? most : 1;
        if (waking != was_waking)
            setsockopt(connection->fd, SOL_SOCKET, SO_RCVLOWAT, &waking, sizeof waking);
        was_waking = waking;
        if (connection->tls) {
            if (!SSL_read_ex(connection->tls, target, bytes, &count))
                return 0;
        } else {
            ssize_t received = recv(connection->fd, target, bytes - (waking > 1 ? waking : 0), MSG_WAITALL);
            if (received <= 0)
                return 0;
            count = received;
        }
        target += count;
        bytes -= count;
        if (bytes && direct_now_ns() - ends_ns > (int64_t) ((double) more_ns * (all_bytes - bytes) / all_bytes))
            return 0;
    }
    return 1;
}

/* Get `object` into `data`, which has room for it and for a head; a part into its own target, and only the head into
   `data`. Return whether all of it is as expected; the bytes of a whole object are then at `*body`. `*status` is that of
   the reply, or 0. Afterwards the connection is ready for another one, or closed. */
static inline int direct_get(
    direct_connection *connection, const direct_route *route, const direct_object *object, char *data, char **body,
    int64_t *first_byte_ns, int *is_checked, int *status)
{
    char request[DIRECT_REQUEST_BYTES], *end = NULL;
    direct_text headers[DIRECT_NAMES];
    size_t done = 0, body_bytes = object->target ? 0 : object->size_bytes;
    size_t whole = DIRECT_HEAD_BYTES + body_bytes;
    int64_t began_ns = direct_now_ns(), patience_ns = object->target ? route->part_patience_ns : route->patience_ns;
    int64_t ends_ns = began_ns + (object->target ? route->part_limit_ns / 3 : DIRECT_MOST_SILENCES * patience_ns);
    int is_right = 0, is_kept = 0, one = 1;
    *status = 0;
    ERR_clear_error();
    size_t request_bytes = direct_write_request(connection, route, object, request);
    if (!request_bytes)
        return 0;
    if (connection->fd >= 0 && (connection->port != route->port || strcmp(connection->host, route->host) ||
                                !connection->tls != !route->tls || !direct_is_fresh(connection)))
        direct_close(connection);
    if (connection->fd < 0 && !direct_connect(connection, route))
        goto end;
    if (connection->patience_ns != patience_ns)
        direct_set_patience(connection, patience_ns);
    if (!direct_send(connection, request, request_bytes))
        goto end;
    while (done < whole) {
        size_t most = whole - done;
        if (object->target && most > DIRECT_FIRST_BYTES)
            most = DIRECT_FIRST_BYTES;
        ssize_t count = direct_receive(connection, data + done, most);
        if (count <= 0 || direct_now_ns() > ends_ns)
            goto end;
        done += count;
        if (!end) {
            size_t from = done - count > 3 ? done - count - 3 : 0;
            if (done == (size_t) count)
                *first_byte_ns = direct_now_ns() - began_ns;
            end = memmem(data + from, (done < DIRECT_HEAD_BYTES ? done : DIRECT_HEAD_BYTES) - from, "\r\n\r\n", 4);
            if (end) {
                if (!direct_parse(data, end - data, object->target ? "206" : "200", headers, status) ||
                    !direct_is_of(headers, object))
                    goto end;
                whole = end + 4 - data + (object->target ? object->part_bytes : body_bytes);
                if (done > whole)
                    goto end;
            } else if (done >= DIRECT_HEAD_BYTES)
                goto end;
        }
        if (done < whole) /* Ceph with Nagle's algorithm sends the rest when this is acknowledged. */
            setsockopt(connection->fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
        if (end && object->target)
            break;
    }
    *body = end + 4;
    if (object->target) {
        size_t begun = data + done - *body;
        memcpy(object->target, *body, begun);
        is_right = direct_fill(connection, object->target + begun, object->part_bytes - begun, ends_ns,
                               route->part_limit_ns / 3 * 2);
    } else
        is_right = direct_is_right(headers, (const uint8_t *) *body, object->size_bytes, is_checked);
    const direct_text *persistence = &headers[DIRECT_CONNECTION];
    is_kept = is_right && (!persistence->at ||
                           (persistence->bytes == 10 && !strncasecmp(persistence->at, "keep-alive", 10)));
end:
    if (!is_kept)
        direct_close(connection);
    if (!is_right && !*status) /* another address may answer */
        connection->turn++;
    return is_right;
}

#endif
