from libc.stdint cimport uint64_t


cdef int write_reply(int device, uint64_t unique, int error, const void *data, size_t size_bytes) noexcept nogil
