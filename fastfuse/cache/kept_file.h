/* A small file that the local tier keeps, read by a thread without the interpreter, past the page cache. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* What direct I/O takes on every device (cache/segments.py). */
#define KEPT_ALIGNMENT 4096
/* The room that a read needs beside the file. */
#define KEPT_LEAD_BYTES (2 * KEPT_ALIGNMENT)

/* Where it lies, by the index (cache/catalog.py); `segment` is 0 for a file that the tier has not. */
struct kept_place {
    uint64_t segment, offset, digest, seed;
};

/* Read `size_bytes` into `memory`, which is aligned and has KEPT_LEAD_BYTES more; `*body` is where they are then.
   Return whether they are what was written. */
static bool kept_read(int directory_fd, const struct kept_place *place, size_t size_bytes, char *memory, char **body)
{
    char name[32];
    size_t lead = place->offset % KEPT_ALIGNMENT;
    size_t whole_bytes = (lead + size_bytes + KEPT_ALIGNMENT - 1) / KEPT_ALIGNMENT * KEPT_ALIGNMENT;
    snprintf(name, sizeof name, "%llx.segment", (unsigned long long)place->segment);
    int fd = openat(directory_fd, name, O_RDONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EINVAL) /* a file system in memory, of an older kernel */
        fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t read_bytes = pread(fd, memory, whole_bytes, (off_t)(place->offset - lead));
    close(fd);
    *body = memory + lead;
    return read_bytes >= (ssize_t)(lead + size_bytes)
        && XXH3_64bits_withSeed(*body, size_bytes, place->seed) == place->digest;
}
