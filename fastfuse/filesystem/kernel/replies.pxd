from libc.stdint cimport uint64_t


cdef char *next_request(int device, ssize_t *size_bytes) noexcept
cdef void keep_read(const char *message) noexcept nogil
cdef int write_reply(int device, uint64_t unique, int error, const void *data, size_t size_bytes) noexcept nogil
cdef void end_request() noexcept
cdef void put_off() noexcept
