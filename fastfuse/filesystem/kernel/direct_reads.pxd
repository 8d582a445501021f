from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t


cdef extern from "../../s3/direct_get.h" nogil:
    ctypedef struct direct_object:
        char path[4096]
        size_t path_bytes
        char etag[256]
        size_t etag_bytes
        size_t size_bytes
        int64_t modified_s
        uint64_t start
        size_t part_bytes
        char *target


cdef struct Job:
    # A READ of the kernel for all of a small file: its number, its inode, who reads, and for how much it asks.
    uint64_t unique
    uint64_t inode
    uint32_t pid
    uint32_t asked_bytes
    direct_object object


cdef bint has_news() noexcept
cdef bint has_much_news() noexcept
cdef bint may_have_news() noexcept
cdef Job *take(uint64_t inode, uint64_t size_bytes) noexcept
cdef bint begin(Job *job) noexcept
cdef void drop(Job *job) noexcept
cdef bint may_fetch_ahead(uint64_t inode, uint64_t size_bytes) noexcept
cdef bint may_be_kept(const direct_object *object) noexcept
cdef bint fetch_ahead(uint64_t inode, const direct_object *object, data) except? False
cdef bint answer_ahead(uint64_t unique, uint64_t inode, uint64_t offset, uint32_t asked_bytes, uint32_t pid) noexcept
