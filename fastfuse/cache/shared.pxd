from libc.stdint cimport int64_t, uint64_t


cdef int lock(int fd, bint is_claim, int64_t object_id, uint64_t start, uint64_t end) noexcept nogil
cdef bint may_be_claimed_here(int64_t object_id) noexcept
cdef bint may_have(int fd, uint64_t words, int64_t object_id) noexcept nogil
