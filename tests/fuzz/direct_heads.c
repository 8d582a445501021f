/* What direct_get.h makes of a head, for tests/fuzz/direct_heads.py. */

#define _GNU_SOURCE
#include "../../fastfuse/s3/direct_get.h"

/* Return whether the head is that of a reply with the bytes from `start` to `end` of the object, or with all of it if
   that are none, and where in the head each header is, and how long: -1 for one that is not there. */
int accepted(const char *head, size_t bytes, const char *etag, size_t size_bytes, size_t start, size_t end,
             ssize_t *places)
{
    static direct_object object;
    direct_text headers[DIRECT_NAMES];
    int status = 0;
    object.size_bytes = size_bytes;
    object.start = start;
    object.part_bytes = end - start;
    object.target = end ? (char *) places : NULL; /* only looked at */
    object.etag_bytes = strlen(etag);
    memcpy(object.etag, etag, object.etag_bytes);
    if (!direct_parse(head, bytes, end ? "206" : "200", headers, &status) || !direct_is_of(headers, &object))
        return 0;
    for (int name = 0; name < DIRECT_NAMES; name++) {
        places[2 * name] = headers[name].at ? headers[name].at - head : -1;
        places[2 * name + 1] = headers[name].bytes;
    }
    return status;
}

const char *name_of(int name)
{
    return name < DIRECT_NAMES ? direct_names[name] : NULL;
}
