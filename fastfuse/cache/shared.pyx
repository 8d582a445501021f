# cython: language_level=3
"""What processes share of a tier beside its index: the locks that are claims, and a filter of what is kept.

Threads without the interpreter use both (filesystem/kernel/direct_reads.pyx).

The filter (Bloom, 1970) has two bits of one word for each object of which something was ever kept. Without them the index
has nothing of it. It is a hint only: a bit that is missing costs a second fetch, one that is not needed any more a look
into the index. So bits are never cleared, and no lock and no synchronisation keeps them. The file is read and written,
not mapped, as a disk that fails would kill whoever had mapped it (SIGBUS).
"""

from libc.errno cimport EOPNOTSUPP, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.types cimport off_t

import os

cdef extern from "<fcntl.h>" nogil:
    struct flock:
        short l_type, l_whence
        off_t l_start, l_len
        int l_pid
    int F_OFD_SETLK, F_WRLCK, F_UNLCK
    int fcntl(int, int, void *)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    int RWF_NOWAIT
    ssize_t preadv2(int, const iovec *, int, off_t, int)

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int, void *, size_t, off_t)
    ssize_t pwrite(int, const void *, size_t, off_t)

cdef enum:
    _PAGE_BYTES = 4096
    # An offset has 63 bits: 34 of them number the pages of the largest object (50 TB), and the object has the others.
    _PAGE_BITS = 34
    _OBJECT_BITS = 28
    _WORD_BYTES = 8
    _COUNTS = 1 << 16
    # Where the numbers of the two bits are in the name of an object, above those of the word. The claims take others.
    _FIRST_BIT_AT = 51
    _SECOND_BIT_AT = 57


# The claims of this process, by the lowest bits of their objects.
cdef uint32_t claims[_COUNTS]


cdef int lock(int fd, bint is_claim, int64_t object_id, uint64_t start, uint64_t end) noexcept nogil:
    """Claim ``[start, end)`` of an object, or give up the claim; return 0 or an errno."""
    cdef flock request
    cdef uint64_t first = start // _PAGE_BYTES, behind = (end + _PAGE_BYTES - 1) // _PAGE_BYTES
    request.l_type, request.l_whence, request.l_pid = F_WRLCK if is_claim else F_UNLCK, 0, 0
    request.l_start = ((<uint64_t> object_id % (<uint64_t> 1 << _OBJECT_BITS)) << _PAGE_BITS) + first
    request.l_len = behind - first
    return errno if fcntl(fd, F_OFD_SETLK, &request) else 0


def set_lock(int fd, bint is_claim, int64_t object_id, uint64_t start, uint64_t end):
    """Claim ``[start, end)`` of an object, or give up the claim.

    Raises:
        OSError: EAGAIN or EACCES if somebody else has claimed some of it; any other if there are no locks.
    """
    cdef int error = lock(fd, is_claim, object_id, start, end)
    if error:
        raise OSError(error, os.strerror(error))


def count_claim(int64_t object_id, int step):
    """Note that this process claims some of an object (1), or does not any more (-1): its locks let itself pass."""
    claims[object_id % _COUNTS] += step


cdef bint may_be_claimed_here(int64_t object_id) noexcept:
    """Return whether this process may have claimed some of an object. Call it with the GIL, as `count_claim` is."""
    return claims[object_id % _COUNTS] != 0


cdef inline uint64_t _bits(int64_t object_id) noexcept nogil:
    return <uint64_t> 1 << (object_id >> _FIRST_BIT_AT & 63) | <uint64_t> 1 << (object_id >> _SECOND_BIT_AT & 63)


cdef bint may_have(int fd, uint64_t words, int64_t object_id) noexcept nogil:
    """Return whether something of an object may be kept; it may if that is not known without waiting for the disk.

    The filter has `words`, a power of two.
    """
    cdef uint64_t word = 0, bits = _bits(object_id)
    cdef iovec into
    into.iov_base, into.iov_len = &word, _WORD_BYTES
    cdef off_t offset = _WORD_BYTES * (object_id & (words - 1))
    cdef ssize_t count = preadv2(fd, &into, 1, offset, RWF_NOWAIT)
    if count < 0 and errno == EOPNOTSUPP:  # a file system in memory, or of layers: what was read once is there
        count = pread(fd, &word, _WORD_BYTES, offset)
    return count != _WORD_BYTES or word & bits == bits


def may_have_object(int fd, int64_t object_id):
    """Return whether something of an object may be kept."""
    return may_have(fd, os.fstat(fd).st_size // _WORD_BYTES, object_id)


def add(int fd, object_ids):
    """Note that something of each object is kept now. A disk that fails costs only bits."""
    cdef int64_t *ids
    cdef Py_ssize_t at, count = len(object_ids)
    cdef uint64_t word, bits, words = os.fstat(fd).st_size // _WORD_BYTES
    cdef off_t offset
    ids = <int64_t *> malloc((count + 1) * sizeof(int64_t))
    if ids == NULL:
        raise MemoryError()
    try:
        for at in range(count):
            ids[at] = object_ids[at]
        with nogil:
            for at in range(count):
                word, bits, offset = 0, _bits(ids[at]), _WORD_BYTES * (ids[at] & (words - 1))
                if pread(fd, &word, _WORD_BYTES, offset) == _WORD_BYTES and word & bits != bits:
                    word |= bits
                    pwrite(fd, &word, _WORD_BYTES, offset)
    finally:
        free(ids)
