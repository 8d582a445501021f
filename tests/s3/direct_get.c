/* GETs over one connection, as `direct_get.h` makes them, for test_direct_get.py: AddressSanitizer watches.

   Reads from standard input six texts, each behind its length (4 bytes), and then the bytes of each request: the length of
   the path, the path, that of the ETag, the ETag, the size, where a part begins and its length, which is 0 for the whole
   object, and the ms of the route's patience and of the limit of a part. Writes for each whether it is right, whether there
   was a checksum, whether what comes is acknowledged at once (1 byte each), and the bytes if all went right. */

#define _GNU_SOURCE
#include "../../fastfuse/s3/direct_get.h"

static void take(void *target, size_t bytes)
{
    if (bytes && fread(target, bytes, 1, stdin) != 1)
        exit(0);
}

static uint32_t number(void)
{
    uint32_t value;
    take(&value, sizeof value);
    return value;
}

int main(int count, char **arguments)
{
    direct_route route = {.uses = 1, .is_address = 1};
    direct_connection connection = {.fd = -1, .hash = EVP_MD_CTX_new()};
    for (char *port = strtok(arguments[1], ","); port; port = strtok(NULL, ",")) {
        struct sockaddr_in *address = (struct sockaddr_in *) &route.addresses[route.address_count++];
        address->sin_family = AF_INET;
        address->sin_port = htons(atoi(port));
        address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    strcpy(route.host, "127.0.0.1");
    direct_make_crcs();
    if (count > 2) {
        route.tls = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_verify(route.tls, SSL_VERIFY_PEER, NULL);
        if (!SSL_CTX_load_verify_file(route.tls, arguments[2]))
            return 1;
    }
    for (int at = 0; at < 6; at++) {
        direct_text *text = &route.before + at;
        text->bytes = number();
        char *bytes = malloc(text->bytes);
        take(bytes, text->bytes);
        text->at = bytes;
    }
    if (route.key.bytes && !direct_begin_mac(&route))
        return 1;
    for (;;) {
        static direct_object object;
        int64_t first_byte_ns;
        int is_checked = 0, status;
        char *body = NULL;
        object.path_bytes = number();
        take(object.path, object.path_bytes);
        object.etag_bytes = number();
        take(object.etag, object.etag_bytes);
        object.size_bytes = number();
        object.start = number();
        object.part_bytes = number();
        route.patience_ns = number() * INT64_C(1000000);
        route.part_patience_ns = route.patience_ns + 1; /* so that a connection has to change it */
        route.part_limit_ns = number() * INT64_C(1000000);
        object.target = object.part_bytes ? malloc(object.part_bytes) : NULL;
        size_t bytes = object.target ? object.part_bytes : object.size_bytes;
        char *data = malloc(DIRECT_HEAD_BYTES + (object.target ? 0 : bytes));
        int is_prompt = 0;
        socklen_t flag_bytes = sizeof is_prompt;
        setsockopt(connection.fd, IPPROTO_TCP, TCP_QUICKACK, &is_prompt, flag_bytes);
        int is_right = direct_get(&connection, &route, &object, data, &body, &first_byte_ns, &is_checked, &status);
        getsockopt(connection.fd, IPPROTO_TCP, TCP_QUICKACK, &is_prompt, &flag_bytes);
        putchar(is_right);
        putchar(is_checked);
        putchar(is_prompt);
        if (is_right)
            fwrite(object.target ? object.target : body, bytes, 1, stdout);
        fflush(stdout);
        free(data);
        free(object.target);
    }
}
