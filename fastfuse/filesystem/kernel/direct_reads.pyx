# cython: language_level=3, boundscheck=False, wraparound=False
"""Threads that read without the interpreter: small files, from the kernel's request to the kernel's pages, and parts.

`interposed` sees each READ of the kernel first. If it is for all of a small file of which the read engine knows
nothing, a thread from here GETs the object (s3/direct_get.h), compares the reply with what was listed, and writes it to
the kernel. The thread never takes the GIL. Python learns afterwards what was read (`served`), many files at a time.

A file that the local tier cannot have, by its filter (cache/shared.pyx), is claimed and got alike, and given to Python
to be kept. For one that may be there, Python looks into the index: it says where the file lies (`read_kept`), or that it
is not there (`get_file`). Where one lies is remembered, and its later reads take no Python.

A part of a large file, or a small one of which a part is read, is GET into memory that Python gives (`get_part`), which
hears of its end with others (`parts`).

A small file is fetched *ahead* by threads alone (`files_ahead.pxi`): its READs are answered from memory that Python gave,
or once its GET ends, until it is read or dropped. Python hears of that GET and of those READs as of other files (`served`).

Anything unusual is `returned`: Python reads that file as it reads every other one, and answers the kernel. So all rules
of retries, deadlines, credentials and errors are where they were. Threads take requests only while Python lets them
(`arm`), and stop by themselves at the first sign of trouble that other files share.

Invariant: a request is taken by a thread or by Python, and answered once. An inode that a thread has in hand is marked
until Python has heard of it, so that both do not fetch it. The loop's thread alone marks inodes.
"""

from cpython.buffer cimport PyBUF_WRITABLE, Py_buffer, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport ENOMEM
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap

from fastfuse.cache.shared cimport lock as lock_range, may_be_claimed_here, may_have
from fastfuse.filesystem.kernel.replies cimport write_reply
from fastfuse.filesystem.kernel.direct_reads cimport Job, direct_object
from fastfuse.filesystem.kernel.threads cimport (
    PR_SET_NAME, prctl, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, start_thread,
)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *, int, unsigned int)
    int sem_post(sem_t *)
    int sem_wait(sem_t *)

cdef extern from "<sys/mman.h>" nogil:
    int MAP_NORESERVE, MREMAP_MAYMOVE
    void *mremap(void *, size_t, size_t, int)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **, size_t, size_t)

cdef extern from "../../cache/kept_file.h" nogil:
    struct kept_place:
        uint64_t segment, offset, digest, seed
    int KEPT_ALIGNMENT
    int KEPT_LEAD_BYTES
    bint kept_read(int, const kept_place *, size_t, char *, char **)

cdef extern from "<sys/socket.h>" nogil:
    int SHUT_RDWR
    int shutdown(int, int)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd_write(int, uint64_t)

cdef extern from "../../s3/direct_get.h" nogil:
    ctypedef struct direct_text:
        const char *at
        size_t bytes
    ctypedef struct EVP_MD_CTX:
        pass
    ctypedef struct SSL_CTX:
        pass
    struct sockaddr_storage:
        pass
    ctypedef struct direct_route:
        int uses
        int64_t ends_ns, patience_ns, part_patience_ns, part_limit_ns
        sockaddr_storage addresses[8]
        int address_count
        SSL_CTX *tls
        char host[256]
        int port, is_address
        direct_text before, behind, canonical_before, canonical_behind, before_hash, key
        EVP_MD_CTX *inner
        EVP_MD_CTX *outer
        char *texts
        size_t texts_bytes
    ctypedef struct direct_connection:
        int fd
        unsigned int turn
        EVP_MD_CTX *hash
    int DIRECT_HEAD_BYTES
    int DIRECT_MOST_SILENCES
    int DIRECT_MOST_ADDRESSES
    int DIRECT_PATH_BYTES
    int DIRECT_ETAG_BYTES
    int64_t direct_now_ns()
    void direct_make_crcs()
    bint direct_get(
        direct_connection *, const direct_route *, const direct_object *, char *, char **, int64_t *, int *, int *)
    int direct_begin_mac(direct_route *)
    void direct_free_route(direct_route *)
    ctypedef struct EVP_MD:
        pass
    EVP_MD_CTX *EVP_MD_CTX_new()
    void EVP_MD_CTX_free(EVP_MD_CTX *)
    const EVP_MD *EVP_sha256()
    int EVP_DigestInit_ex(EVP_MD_CTX *, const EVP_MD *, void *)
    int EVP_DigestUpdate(EVP_MD_CTX *, const void *, size_t)
    int EVP_DigestFinal_ex(EVP_MD_CTX *, unsigned char *, unsigned int *)
    int EVP_MD_CTX_copy_ex(EVP_MD_CTX *, const EVP_MD_CTX *)

cdef enum:
    _MOST_THREADS = 256  # as many connections; each thread has 264 KiB of buffer, and 256 of stack
    _MOST_BYTES = 256 << 10  # a larger file costs more to copy than the interpreter takes
    # Files served that Python has not heard of: it takes them within milliseconds (`interposed`). And files ahead, of which
    # the engine has half as many at most (`readahead.shelves`): they leave room to READs.
    _MOST_RECORDS = 32 << 10
    _MOST_FAILURES = 3  # one after the other, that look like trouble of the service
    _MOST_KEPT = 1 << 20  # places in the tier that are remembered: 40 MiB, of which only what is used takes memory
    # Statuses of files that are returned: the disk does not give it; somebody else has claimed it; it may be kept now.
    _STALLED = -1
    _CLAIMED = -2
    _MAY_BE_KEPT = -3
    _TOLD = -4  # it waited for a file ahead, of which Python hears by itself
    _UNARMED = -5  # nobody was asked for it
    _NOT_KEPT = -1  # the object of a file that the tier is not to keep
    # Marks of an inode: the reader that has it in hand.
    _BY_ENGINE = 1
    _BY_THREAD = 2
    _NEVER = 4
    _AHEAD = 8
    # What a record tells of: a READ and its GET, the GET of a file ahead, or the READ of one.
    _READ = 0
    _GOT_AHEAD = 1
    _READ_AHEAD = 2
    # States of a file ahead.
    _QUEUED = 0
    _RUNNING = 1
    _HERE = 2
    _FAILED = 3


cdef struct Ahead
cdef struct Record

cdef struct Thread:
    Job job
    int number
    sem_t has_job
    Thread *next_idle
    direct_connection connection
    direct_route *route
    int64_t began_ns
    # Aligned, with room for a reply, or for a file and what surrounds it in the tier.
    char *data
    # Of a file that the tier keeps, and whether it was given back to Python meanwhile.
    kept_place kept
    bint is_given_back
    # Of a file that the tier is to keep: its object there or _NOT_KEPT, and whether Python has looked for it.
    int64_t object_id
    uint64_t seed
    bint is_missing
    # The file ahead that it gets, or NULL.
    Ahead *ahead
    # Of a part: that it is one, a reference to its memory, and what became of it.
    bint is_part
    Py_buffer part
    bint is_right
    int is_checked
    int status
    int64_t first_byte_ns

cdef struct Record:
    int kind
    uint64_t unique, inode, offset
    uint32_t pid, asked_bytes, size_bytes
    int is_checked, status
    int64_t began_ns, took_ns, first_byte_ns
    # Where the tier keeps it, or 0 if it was GET; and the seed of its digest.
    uint64_t segment, seed
    # Of a file that the tier is to keep: its object there, and its bytes, or NULL.
    int64_t object_id
    char *copy
    # Of a file ahead: itself and whether its GET brought it, or whether this READ is its first and had to wait; and the
    # next READ that waits for it.
    Ahead *ahead
    bint is_right, is_first, has_waited
    Record *next

cdef struct Ahead:
    uint64_t inode
    # A reference to its memory, and what of it no READ has asked for.
    Py_buffer data
    int64_t unread_bytes
    bint is_begun
    # What a thread is to get: its path, and behind that its ETag. Its object in the tier is as in `Thread`.
    char *names
    size_t path_bytes, etag_bytes
    int64_t object_id
    uint64_t seed
    int state
    # Those that refer to it: `files_ahead`, and its GET until Python has heard of that.
    int uses
    # The READs that wait for its GET, in any order; and the file that is queued behind it.
    Record *waiting
    Ahead *next

cdef struct Kept:
    uint64_t inode  # 0 for none
    kept_place place

cdef pthread_mutex_t lock
# All below is used with `lock` held, but for what only the loop's thread uses: `marks`, `kept`, the making of threads.
cdef direct_route *route = NULL
cdef Thread *idle = NULL
# Those that have ended a part of which Python has not heard; they have no other job until then.
cdef Thread *ended = NULL
cdef Thread *all_threads[_MOST_THREADS]
cdef int thread_count = 0, in_flight = 0, failures = 0, most_threads = 0
# The errno with which the system refused a thread, until Python knows; -1 from then on. Used by the loop's thread.
cdef int refusal = 0
# Parts that Python has begun and not heard of; used by the loop's thread.
cdef int parts_in_flight = 0
# Files ahead that wait for a thread, oldest first, how many have one, and the records that there will be of them all.
cdef Ahead *first_queued = NULL
cdef Ahead *last_queued = NULL
cdef int ahead_in_flight = 0, promised = 0
# READs that wait for the GET of a file ahead.
cdef int attached = 0
# Used by the loop's thread: the address of each file ahead by its inode, oldest first, and the bytes that they take. The
# inodes of those of which a READ has asked for a part only, oldest first, what they take, and what they may take. And
# the bytes that were fetched ahead, or are on their way, and that no READ asked for until they were dropped.
cdef dict files_ahead = {}
cdef dict begun_ahead = {}
cdef int64_t ahead_bytes = 0, begun_bytes = 0, most_begun_bytes = 0, wasted_bytes = 0
cdef Record records[_MOST_RECORDS]
cdef int record_count = 0
cdef Record gone_wrong[_MOST_THREADS * 4]
cdef int wrong_count = 0
# Copies of the records that Python takes, so that no thread waits for the interpreter.
cdef Record told_records[_MOST_RECORDS]
cdef int device = -1, wrong_fd = -1
# Of the tier, if there is one, and whether it is used now.
cdef int kept_directory = -1, claims_fd = -1, filter_fd = -1
cdef uint64_t filter_words = 0
cdef bint is_tier_used = False
# The hash of what names an object there, as far as all of them have it in common; and that of one object.
cdef EVP_MD_CTX *named = NULL
cdef EVP_MD_CTX *naming = NULL
cdef int64_t kept_patience_ns = 0
# Where files lie in the tier, each at its inode modulo `_MOST_KEPT`.
cdef Kept *kept = NULL
cdef int64_t *waiting = NULL
cdef int64_t waiting_since_ns = 0, stalled = 0, in_flight_bytes = 0
cdef uint8_t *marks = NULL
cdef uint64_t marked = 0
cdef object _waits

pthread_mutex_init(&lock, NULL)
direct_make_crcs()
STALLED, MAY_BE_KEPT = _STALLED, _MAY_BE_KEPT
READ, GOT_AHEAD, READ_AHEAD = _READ, _GOT_AHEAD, _READ_AHEAD


cdef class Body:
    """The bytes of a file that a thread got: a read-only buffer."""
    cdef char *data
    cdef Py_ssize_t size_bytes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size_bytes, True, flags)

    def __dealloc__(self):
        free(self.data)


def start(int device_fd, int returned_fd, int threads):
    """Write replies to `device_fd`, and tell of what is returned through the eventfd `returned_fd`, from `threads`.

    Starts no thread yet.
    """
    global device, wrong_fd, most_threads
    device, wrong_fd, most_threads = device_fd, returned_fd, min(threads, _MOST_THREADS)


def keep_in(int directory, int claims, int filter, uint64_t filter_bytes, double patience_s):
    """Read the files of `read_kept` from segments below a directory; after `patience_s` each is returned.

    Claim in `claims` what is got, if the `filter` says that it is not kept. Numbers without a unit are descriptors.
    """
    global kept_directory, claims_fd, filter_fd, filter_words, kept_patience_ns, named, naming
    kept_directory, claims_fd, filter_fd, filter_words = directory, claims, filter, filter_bytes // 8
    kept_patience_ns = <int64_t> (patience_s * 1e9)
    named, naming = EVP_MD_CTX_new(), EVP_MD_CTX_new()
    if named == NULL or naming == NULL:
        raise MemoryError()
    forget_kept()


def use_tier(bint is_used):
    """Claim what is got from now on, and give it to be kept; or not."""
    global is_tier_used
    is_tier_used = is_used


def forget_kept():
    """Have Python say again where each file lies."""
    global kept
    cdef size_t size_bytes = _MOST_KEPT * sizeof(Kept)
    if kept != NULL:
        munmap(kept, size_bytes)
    # The heap may keep what is freed, and would write zeros to all of it.
    kept = <Kept *> mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if <void *> kept == MAP_FAILED:
        kept = NULL


def count_waits(int64_t[::1] count):
    """Keep the number of reads under way in `count[0]`: those of threads, and those of `begin_wait`."""
    global waiting, _waits
    waiting, _waits = &count[0], count


def cover(uint64_t inodes):
    """Make room for marks of all inodes below `inodes`."""
    global marks, marked
    cdef void *grown
    if inodes > marked:
        # Marks that are never written take no memory, nor does the move: the kernel moves only pages that there are.
        if marked:
            grown = mremap(marks, marked, inodes, MREMAP_MAYMOVE)
        else:
            grown = mmap(NULL, inodes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if grown == MAP_FAILED:
            raise MemoryError()
        marks, marked = <uint8_t *> grown, inodes


def claim(uint64_t inode, *, bint is_for_ever=False):
    """Leave `inode` to Python."""
    if inode < marked:
        marks[inode] |= _NEVER if is_for_ever else _BY_ENGINE


def release(uint64_t inode):
    """Let threads read `inode` again."""
    if inode < marked:
        marks[inode] &= ~_BY_ENGINE


def is_read(uint64_t inode):
    """Return whether a thread reads `inode`, ahead or not, or has read it and Python has not heard of it yet."""
    return inode < marked and marks[inode] & (_BY_THREAD | _AHEAD) != 0


def in_flight_now():
    """Return how many files threads read now, those ahead included, and the bytes of the others."""
    return in_flight + ahead_in_flight, in_flight_bytes


def arm(*, list addresses, bytes host, int port, bint is_address, uint64_t tls, tuple texts, double for_s,
        double patience_s, double part_patience_s, double part_limit_s, bytes identity_begin):
    """Let threads read from now on and for `for_s`, over this way.

    `addresses` are each a `sockaddr`, and no more than eight are used. `tls` is the address of an SSL_CTX or 0, and
    `texts` are those of `direct_route` in order. The GET of a file in which nothing comes for `patience_s` is returned,
    that of a part after `part_patience_s`, or if it takes longer than `part_limit_s` in all, or drips. The names of
    objects in the tier are hashes that begin with `identity_begin`, and go on with the rest of their keys.
    """
    global route, failures
    cdef direct_route *new
    cdef direct_route *old
    cdef char *at
    cdef bytes text = b"".join(texts)
    cdef bytes address
    if not addresses or len(host) >= 256 or len(texts) != 6:
        raise ValueError("a way that leads nowhere")
    if named != NULL and not (EVP_DigestInit_ex(named, EVP_sha256(), NULL)
                              and EVP_DigestUpdate(named, PyBytes_AS_STRING(identity_begin), len(identity_begin))):
        raise MemoryError()
    new = <direct_route *> calloc(1, sizeof(direct_route))
    if new == NULL:
        raise MemoryError()
    new.texts = <char *> malloc(len(text) + 1)
    if new.texts == NULL:
        free(new)
        raise MemoryError()
    memcpy(new.texts, PyBytes_AS_STRING(text), len(text))
    new.texts_bytes = len(text)
    for address in addresses[:DIRECT_MOST_ADDRESSES]:
        memcpy(&new.addresses[new.address_count], PyBytes_AS_STRING(address),
               min(<size_t> len(address), sizeof(sockaddr_storage)))
        new.address_count += 1
    memcpy(new.host, PyBytes_AS_STRING(host), len(host))
    new.port, new.is_address, new.tls, new.uses = port, is_address, <SSL_CTX *> tls, 1
    new.patience_ns, new.ends_ns = <int64_t> (patience_s * 1e9), direct_now_ns() + <int64_t> (for_s * 1e9)
    new.part_patience_ns, new.part_limit_ns = <int64_t> (part_patience_s * 1e9), <int64_t> (part_limit_s * 1e9)
    at = new.texts
    for place, part in zip(range(6), texts):
        (&new.before)[<int> place].at, (&new.before)[<int> place].bytes = at, len(part)
        at += <Py_ssize_t> len(part)
    if new.key.bytes and not direct_begin_mac(new):
        direct_free_route(new)
        raise MemoryError()
    pthread_mutex_lock(&lock)
    old, route, failures = route, new, 0
    let_go(old)
    pthread_mutex_unlock(&lock)


def disarm():
    """Leave every read to Python from now on."""
    pthread_mutex_lock(&lock)
    stop()
    pthread_mutex_unlock(&lock)


def refused():
    """Return the errno with which the system has refused a thread; 0 if it has not, and once it was told."""
    global refusal
    told = max(0, refusal)
    refusal = -1 if refusal else 0
    return told


def is_armed():
    """Return whether threads read."""
    cdef bint armed
    pthread_mutex_lock(&lock)
    armed = route != NULL and direct_now_ns() < route.ends_ns
    pthread_mutex_unlock(&lock)
    return armed


def end_stalled():
    """End connections whose GET takes longer than it may: a drip over TLS resets every timeout of its socket.

    Return files that the disk of the tier does not give; their threads wait on, and answer nothing.
    """
    cdef int at
    cdef Thread *thread
    cdef Record record
    cdef int64_t limit_ns, now_ns = direct_now_ns()
    pthread_mutex_lock(&lock)
    for at in range(thread_count):
        thread = all_threads[at]
        if thread.kept.segment:
            if not thread.is_given_back and now_ns - thread.began_ns > kept_patience_ns:
                thread.is_given_back = True
                record = record_of(thread)
                record.status = _STALLED
                give_back(thread, &record)
            continue
        if thread.route != NULL:
            limit_ns = DIRECT_MOST_SILENCES * thread.route.patience_ns
            if thread.job.object.target != NULL:
                limit_ns = thread.route.part_limit_ns
            if now_ns - thread.began_ns > limit_ns and thread.connection.fd >= 0:
                shutdown(thread.connection.fd, SHUT_RDWR)
    pthread_mutex_unlock(&lock)


cdef int take_records(Record *source, int *count) noexcept:
    """Move the records in `source` to `told_records`, and return how many there are."""
    cdef int taken
    pthread_mutex_lock(&lock)
    taken, count[0] = count[0], 0
    memcpy(told_records, source, taken * sizeof(Record))
    pthread_mutex_unlock(&lock)
    return taken


def served():
    """Yield what threads have done since the last call, each as what it was and a tuple.

    READ: ``(inode, size, process, bytes asked for, seconds since it began, seconds that it took, seconds to the first
    byte, whether it had a checksum, the segment of the tier that it was read from or 0, the seed of its digest there,
    its object there, its bytes if they are claimed and to be kept)``.
    GOT_AHEAD: ``(inode, size, whether it is there, status of the reply or as in `returned`, seconds that it took, seconds
    to the first byte, whether it had a checksum, seed, object and bytes as above)``.
    READ_AHEAD: ``(inode, offset, size, process, bytes asked for, seconds since it began, seconds that it took, whether it
    waited, whether it is the first of its file)``.

    All inodes of READs stay marked until the end: what is told of the first may fetch files ahead.
    """
    cdef int at, count
    cdef Record *one
    cdef Body body
    cdef int64_t now_ns = direct_now_ns()
    if not record_count:
        return
    count = take_records(records, &record_count)
    try:
        for at in range(count):
            one, body = &told_records[at], None
            if one.copy != NULL:
                body = Body()
                body.data, body.size_bytes = one.copy, one.size_bytes
            if one.kind == _READ:
                yield _READ, (
                    one.inode, one.size_bytes, one.pid, one.asked_bytes, (now_ns - one.began_ns) * 1e-9,
                    one.took_ns * 1e-9, one.first_byte_ns * 1e-9, one.is_checked != 0, one.segment, one.seed,
                    one.object_id, body)
            elif one.kind == _GOT_AHEAD:
                end_get_ahead(one)
                yield _GOT_AHEAD, (
                    one.inode, one.size_bytes, one.is_right != 0, one.status, one.took_ns * 1e-9,
                    one.first_byte_ns * 1e-9, one.is_checked != 0, one.seed, one.object_id, body)
            else:
                yield _READ_AHEAD, (
                    one.inode, one.offset, one.size_bytes, one.pid, one.asked_bytes, (now_ns - one.began_ns) * 1e-9,
                    one.took_ns * 1e-9, one.has_waited != 0, one.is_first != 0)
    finally:
        for at in range(count):
            if told_records[at].kind != _GOT_AHEAD:
                marks[told_records[at].inode] &= ~_BY_THREAD


def returned():
    """Return the reads that Python has to answer.

    Each is ``(number, inode, offset, size, process, status of the service's reply or 0, segment of the tier or 0, seconds
    since it began)``; the status is STALLED if the disk of the tier does not answer, MAY_BE_KEPT if others may have kept
    the file meanwhile, and another negative number if nobody answered for another reason.
    """
    cdef int at
    cdef Record *one
    cdef int64_t now_ns = direct_now_ns()
    told = []
    for at in range(take_records(gone_wrong, &wrong_count)):
        one = &told_records[at]
        marks[one.inode] &= ~_BY_THREAD
        if one.segment and kept_at(one.inode) != NULL:
            kept_at(one.inode).inode = 0
        told.append((one.unique, one.inode, one.offset, one.asked_bytes, one.pid, one.status, one.segment,
                     (now_ns - one.began_ns) * 1e-9))
    return told


def may_read_kept(uint64_t inode, uint64_t size_bytes):
    """Return whether a thread could read a file that the tier keeps."""
    return kept_directory >= 0 and inode < marked and not marks[inode] and 0 < size_bytes <= _MOST_BYTES


def place_kept(uint64_t inode, uint64_t segment, uint64_t offset, uint64_t digest, uint64_t seed):
    """Remember that a small file lies at the `offset` of a `segment`, which is not 0; `seed` is that of its digest."""
    if kept != NULL:
        kept[inode % _MOST_KEPT].inode = inode
        kept[inode % _MOST_KEPT].place = kept_place(segment, offset, digest, seed)


def is_placed(uint64_t inode):
    """Return whether it is remembered where a small file lies."""
    return kept_at(inode) != NULL


def read_kept(uint64_t unique, uint64_t inode, uint32_t asked_bytes, uint32_t pid, uint64_t size_bytes,
              uint64_t segment, uint64_t offset, uint64_t digest, uint64_t seed):
    """Have a thread answer the read of all of a small file, for which `may_read_kept` is true; return whether one does.

    It lies where `place_kept` says.
    """
    cdef Thread *thread = taken_thread(False, False) if segment else NULL
    if thread == NULL:
        return False
    place_kept(inode, segment, offset, digest, seed)
    thread.kept, thread.is_given_back = kept_place(segment, offset, digest, seed), False
    begin_file(thread, unique, inode, asked_bytes, pid, size_bytes)
    return True


def get_file(uint64_t unique, uint64_t inode, uint32_t asked_bytes, uint32_t pid, uint64_t size_bytes, bytes path,
             bytes etag, int64_t object_id, uint64_t seed):
    """As `read_kept`, from the service, and to be kept, as it is not; `path` and `etag` are as in `get_part`."""
    cdef Thread *thread
    if len(path) >= DIRECT_PATH_BYTES or len(etag) >= DIRECT_ETAG_BYTES:
        return False
    thread = taken_thread(False, True)
    if thread == NULL:
        return False
    thread.object_id, thread.seed, thread.is_missing = object_id, seed, True
    describe(&thread.job.object, path, etag)
    begin_file(thread, unique, inode, asked_bytes, pid, size_bytes)
    return True


cdef void begin_file(Thread *thread, uint64_t unique, uint64_t inode, uint32_t asked_bytes, uint32_t pid,
                     uint64_t size_bytes) noexcept:
    thread.job.object.target, thread.job.object.size_bytes = NULL, size_bytes
    thread.job.unique, thread.job.inode, thread.job.asked_bytes, thread.job.pid = unique, inode, asked_bytes, pid
    read_file(thread)


cdef void describe(direct_object *object, bytes path, bytes etag) noexcept:
    memcpy(object.path, PyBytes_AS_STRING(path), len(path))
    memcpy(object.etag, PyBytes_AS_STRING(etag), len(etag))
    object.path_bytes, object.etag_bytes = len(path), len(etag)


def may_get_part():
    """Return whether a thread could begin on a part now. A quarter of the threads is left to files that are read."""
    has_room = parts_in_flight < most_threads - most_threads // 4
    return has_room and route != NULL and (idle != NULL or thread_count < most_threads)


def get_part(bytes path, bytes etag, uint64_t size_bytes, uint64_t start, data):
    """Begin to GET as many bytes from `start` on as `data` has room for, of an object of `size_bytes`.

    All of an object is no more than 256 KiB. `path` is the object's below the prefix of `arm`, URL-encoded. Return a
    number for `parts`, or -1 where none begins.
    """
    global parts_in_flight
    cdef Thread *thread
    cdef direct_object *object
    cdef Py_buffer part
    cdef bint is_whole
    if len(path) >= DIRECT_PATH_BYTES or len(etag) >= DIRECT_ETAG_BYTES:
        return -1
    PyObject_GetBuffer(data, &part, PyBUF_WRITABLE)
    is_whole = <uint64_t> part.len == size_bytes
    thread = taken_thread(True, True) if not is_whole or size_bytes <= _MOST_BYTES else NULL
    if thread == NULL:
        PyBuffer_Release(&part)
        return -1
    thread.is_part, thread.part, object = True, part, &thread.job.object
    describe(object, path, etag)
    object.size_bytes = size_bytes
    object.start, object.part_bytes, object.target = start, part.len, NULL if is_whole else <char *> part.buf
    parts_in_flight += 1
    pthread_mutex_lock(&lock)
    hand_over(thread)
    pthread_mutex_unlock(&lock)
    return thread.number


def parts():
    """Return the parts that have ended since the last call.

    Each is ``(number, whether all of it is there, status of the reply or 0, seconds to the first byte, whether it had a
    checksum)``.
    """
    global ended, parts_in_flight
    cdef Thread *thread
    cdef Thread *following
    pthread_mutex_lock(&lock)
    thread, ended = ended, NULL
    pthread_mutex_unlock(&lock)
    told = []
    while thread != NULL:
        told.append((thread.number, thread.is_right != 0, thread.status, thread.first_byte_ns * 1e-9,
                     thread.is_checked != 0))
        PyBuffer_Release(&thread.part)
        thread.is_part = False
        parts_in_flight -= 1
        following = thread.next_idle
        drop(&thread.job)
        thread = following
    return told


include "files_ahead.pxi"


def begin_wait():
    """Count a read that Python has begun."""
    pthread_mutex_lock(&lock)
    count_wait(1)
    pthread_mutex_unlock(&lock)


def end_wait():
    """Count the end of a read that Python had begun."""
    pthread_mutex_lock(&lock)
    count_wait(-1)
    pthread_mutex_unlock(&lock)


def stalled_ns():
    """Return for how long a read was under way, of threads or of Python, since the last call."""
    global stalled
    pthread_mutex_lock(&lock)
    count_wait(0)
    told, stalled = stalled, 0
    pthread_mutex_unlock(&lock)
    return told


cdef inline void count_wait(int step) noexcept nogil:
    global stalled, waiting_since_ns
    cdef int64_t now_ns = direct_now_ns()
    if waiting == NULL:
        return
    if waiting[0]:
        stalled += now_ns - waiting_since_ns
    waiting_since_ns = now_ns
    waiting[0] += step


cdef void let_go(direct_route *old) noexcept nogil:
    if old != NULL:
        old.uses -= 1
        if not old.uses:
            direct_free_route(old)


cdef void stop() noexcept nogil:
    global route
    cdef direct_route *old = route
    route = NULL
    let_go(old)


cdef bint has_news() noexcept:
    """Return whether `served` has something. It may lag behind; not behind a request that the kernel sent since."""
    return record_count > 0


cdef bint has_much_news() noexcept:
    """Return whether that is more than what is still to come of the files that are under way."""
    return record_count > in_flight + ahead_in_flight


cdef bint may_have_news() noexcept:
    """Return whether there is news, or will be soon."""
    return record_count + in_flight + ahead_in_flight > 0


cdef Job *take(uint64_t inode, uint64_t size_bytes) noexcept:
    """Return a job of a thread that can begin now, for `begin` or `drop`; NULL if Python has to read.

    Called by the loop's thread, which holds the GIL.
    """
    cdef Thread *thread
    cdef Kept *one
    if inode >= marked or marks[inode] or not 0 < size_bytes <= _MOST_BYTES:
        return NULL
    one = kept_at(inode)
    if one == NULL and route == NULL:
        return NULL
    thread = taken_thread(False, one == NULL)
    if thread == NULL:
        return NULL
    thread.job.object.target = NULL
    if one != NULL:
        thread.kept, thread.is_given_back = one.place, False
    return &thread.job


cdef inline Kept *kept_at(uint64_t inode) noexcept:
    """Return where a file lies in the tier, or NULL if that is not known."""
    if kept == NULL or kept[inode % _MOST_KEPT].inode != inode:
        return NULL
    return &kept[inode % _MOST_KEPT]


cdef Thread *taken_thread(bint is_for_part, bint is_for_get) noexcept:
    """Return a thread that has no job and is not idle any more, and a new one if need be; NULL if there is none."""
    global idle, route
    cdef Thread *thread = NULL
    cdef bint has_room
    pthread_mutex_lock(&lock)
    if route != NULL and direct_now_ns() >= route.ends_ns:
        stop()
    has_room = is_for_part or has_room_for_record()
    has_room = has_room and (route != NULL or not is_for_get)
    if has_room:
        thread = idle
        if thread != NULL:
            idle = thread.next_idle
    pthread_mutex_unlock(&lock)
    return new_thread() if thread == NULL and has_room else thread


cdef inline bint has_room_for_record() noexcept nogil:
    """Return whether one more read can be told of, whatever comes of it."""
    return (record_count + in_flight + promised < _MOST_RECORDS
            and wrong_count + in_flight + attached < _MOST_THREADS * 4)


cdef void drop(Job *job) noexcept:
    """Have the thread of a job that it does not do, or has done, go on."""
    cdef Thread *thread = <Thread *> job
    thread.kept.segment, thread.object_id = 0, _NOT_KEPT
    pthread_mutex_lock(&lock)
    rest(thread)
    pthread_mutex_unlock(&lock)


cdef bint begin(Job *job) noexcept:
    """Do a job; return False if it is left to Python, because the tier may have the file, or be about to."""
    cdef Thread *thread = <Thread *> job
    thread.is_missing = False
    if is_tier_used and not thread.kept.segment and not is_new(&job.object, &thread.object_id, &thread.seed):
        drop(job)
        return False
    read_file(thread)
    return True


cdef bint is_new(const direct_object *object, int64_t *object_id, uint64_t *seed) noexcept:
    """Name an object that is to be kept; return whether the tier has it not, and nobody here is about to keep it."""
    return (name(object, object_id, seed) and not may_be_claimed_here(object_id[0])
            and not may_have(filter_fd, filter_words, object_id[0]))


cdef bint name(const direct_object *object, int64_t *object_id, uint64_t *seed) noexcept:
    """Name an object that is to be kept as `cache.catalog` does; return whether that was possible."""
    cdef unsigned char digest[32]
    cdef char text[4096 + 256 + 64]  # DIRECT_PATH_BYTES, DIRECT_ETAG_BYTES, and two numbers
    cdef size_t at = 0, to = 0
    cdef int byte
    while at < object.path_bytes:
        text[to] = object.path[at]
        if object.path[at] == b"%" and at + 2 < object.path_bytes:
            text[to] = <char> (nibble(object.path[at + 1]) << 4 | nibble(object.path[at + 2]))
            at += 2
        at, to = at + 1, to + 1
    text[to] = 0
    memcpy(text + to + 1, object.etag, object.etag_bytes)
    to += 1 + object.etag_bytes
    text[to] = 0
    to += 1
    to += snprintf(text + to, 24, b"%zu", object.size_bytes) + 1
    to += snprintf(text + to, 24, b"%lld", <long long> object.modified_s)
    if not (EVP_MD_CTX_copy_ex(naming, named) and EVP_DigestUpdate(naming, text, to)
            and EVP_DigestFinal_ex(naming, digest, NULL)):
        return False
    object_id[0], seed[0] = 0, 0
    for byte in range(8):
        object_id[0] = <int64_t> (<uint64_t> object_id[0] << 8 | digest[byte])
        seed[0] = seed[0] << 8 | digest[8 + byte]
    object_id[0] = <int64_t> (<uint64_t> object_id[0] >> 1)
    return True


cdef inline int nibble(int letter) noexcept nogil:
    """Return what a hexadecimal digit stands for, whose letters are large."""
    return letter - 48 if letter < 58 else letter - 55


cdef void read_file(Thread *thread) noexcept:
    global in_flight, in_flight_bytes
    cdef Job *job = &thread.job
    marks[job.inode] |= _BY_THREAD
    pthread_mutex_lock(&lock)
    in_flight += 1
    in_flight_bytes += job.object.size_bytes
    count_wait(1)
    hand_over(thread)
    pthread_mutex_unlock(&lock)


cdef inline void hand_over(Thread *thread) noexcept nogil:
    """Have `thread` do its job, with the route of now. It does not take the lock before it has done it."""
    thread.began_ns, thread.route = direct_now_ns(), route
    if route != NULL:
        route.uses += 1
    sem_post(&thread.has_job)


cdef Thread *new_thread() noexcept:
    """Start a thread, unless there are enough or the system has no room; it has no job yet, and is not idle."""
    global thread_count, refusal
    cdef Thread *thread
    cdef int error = ENOMEM
    if thread_count >= most_threads:
        return NULL
    thread = <Thread *> calloc(1, sizeof(Thread))
    if thread == NULL:
        return NULL
    posix_memalign(<void **> &thread.data, KEPT_ALIGNMENT, _MOST_BYTES + max(DIRECT_HEAD_BYTES, KEPT_LEAD_BYTES))
    thread.connection.fd, thread.connection.turn, thread.connection.hash = -1, thread_count, EVP_MD_CTX_new()
    thread.number, thread.object_id = thread_count, _NOT_KEPT
    sem_init(&thread.has_job, 0, 0)
    if thread.data != NULL and thread.connection.hash != NULL:
        error = start_thread(serve, thread)
    if error:
        refusal = refusal or error
        EVP_MD_CTX_free(thread.connection.hash)
        free(thread.data)
        free(thread)
        return NULL
    all_threads[thread_count] = thread
    thread_count += 1
    return thread


cdef void *serve(void *argument) noexcept nogil:
    """Do the jobs of a thread, for ever: it ends with the process."""
    global ended
    cdef Thread *thread = <Thread *> argument
    cdef Record record
    cdef bint is_read
    cdef char *body = NULL
    cdef bint is_first
    prctl(PR_SET_NAME, "fastfuse-get")
    while True:
        while sem_wait(&thread.has_job):  # EINTR
            pass
        record = record_of(thread)
        if record.segment:
            is_read = kept_read(kept_directory, &thread.kept, record.size_bytes, thread.data, &body)
        else:
            record.status = _UNARMED if thread.route == NULL else claimed(thread)
            is_read = record.status == 0 and direct_get(
                &thread.connection, thread.route, &thread.job.object, thread.data, &body, &record.first_byte_ns,
                &record.is_checked, &record.status)
            if thread.object_id != _NOT_KEPT and record.status >= 0:
                record.copy = copied(body, record.size_bytes) if is_read else NULL
                if record.copy == NULL:
                    lock_range(claims_fd, False, record.object_id, 0, record.size_bytes)
            if is_read and thread.is_part and thread.job.object.target == NULL:
                memcpy(thread.part.buf, body, record.size_bytes)
            if is_read and thread.ahead != NULL:
                memcpy(thread.ahead.data.buf, body, record.size_bytes)
        record.took_ns = direct_now_ns() - thread.began_ns
        pthread_mutex_lock(&lock)
        let_go(thread.route)
        thread.route = NULL
        thread.kept.segment, thread.object_id = 0, _NOT_KEPT
        if record.segment and thread.is_given_back:
            rest(thread)
            pthread_mutex_unlock(&lock)
            continue
        if thread.is_part:
            # Python rests after others: what is unusual about ranges, or large bodies, is no sign for small files.
            if is_refusal(record.status):
                stop()
            thread.is_right, thread.status, thread.first_byte_ns = is_read, record.status, record.first_byte_ns
            thread.is_checked = record.is_checked
            is_first = ended == NULL
            thread.next_idle, ended = ended, thread
            pthread_mutex_unlock(&lock)
            if is_first:
                eventfd_write(wrong_fd, 1)
            continue
        if not record.segment:
            note_result(is_read, record.status)
        if thread.ahead != NULL:
            end_ahead(thread, &record, body if is_read else NULL)
        else:
            if is_read:
                # Before the answer: who gets that may ask for the next file, and Python knows of this one then.
                tell(&record)
                pthread_mutex_unlock(&lock)
                is_read = write_reply(device, record.unique, 0, body, record.size_bytes) == 0
                pthread_mutex_lock(&lock)
            if is_read:
                let_end(thread)
                count_wait(-1)
            else:
                give_back(thread, &record)
        rest(thread)
        pthread_mutex_unlock(&lock)


cdef inline void note_result(bint is_read, int status) noexcept nogil:
    """Note how the GET of a small file ended; stop if that is trouble that others share."""
    global failures
    if is_read:
        failures = 0
    elif status >= 0 and status not in (404, 412):  # gone, or another object
        failures += 1
        if is_refusal(status) or failures >= _MOST_FAILURES:
            stop()


cdef inline void tell(const Record *record) noexcept nogil:
    """Tell Python with others; there is room."""
    global record_count
    records[record_count] = record[0]
    record_count += 1


cdef inline int claimed(const Thread *thread) noexcept nogil:
    """Claim the file that a thread is to get, if need be; return 0, or the status with which it is left to Python."""
    if thread.object_id == _NOT_KEPT:
        return 0
    if lock_range(claims_fd, True, thread.object_id, 0, thread.job.object.size_bytes):
        return _CLAIMED
    # Whoever has kept it meanwhile noted that before its claim ended.
    if not thread.is_missing and may_have(filter_fd, filter_words, thread.object_id):
        lock_range(claims_fd, False, thread.object_id, 0, thread.job.object.size_bytes)
        return _MAY_BE_KEPT
    return 0


cdef inline char *copied(const char *body, size_t size_bytes) noexcept nogil:
    cdef char *copy = <char *> malloc(size_bytes)
    if copy != NULL:
        memcpy(copy, body, size_bytes)
    return copy


cdef inline Record record_of(const Thread *thread) noexcept nogil:
    cdef Record record
    memset(&record, 0, sizeof(record))
    record.unique, record.inode, record.pid = thread.job.unique, thread.job.inode, thread.job.pid
    record.asked_bytes, record.size_bytes = thread.job.asked_bytes, thread.job.object.size_bytes
    record.began_ns, record.object_id = thread.began_ns, thread.object_id
    record.segment, record.seed = thread.kept.segment, thread.kept.seed if thread.kept.segment else thread.seed
    return record


cdef inline void let_end(Thread *thread) noexcept nogil:
    global in_flight, in_flight_bytes
    in_flight -= 1
    in_flight_bytes -= thread.job.object.size_bytes


cdef inline void give_back(Thread *thread, const Record *record) noexcept nogil:
    """Let Python answer what `thread` has in hand: see `returned`. It waits until then."""
    let_end(thread)
    return_read(record)


cdef inline void return_read(const Record *record) noexcept nogil:
    global wrong_count
    gone_wrong[wrong_count] = record[0]
    wrong_count += 1
    if wrong_count == 1:
        eventfd_write(wrong_fd, 1)


cdef inline bint is_refusal(int status) noexcept nogil:
    """Return whether a reply's status is trouble that other objects share."""
    return status >= 400 and status not in (403, 404, 412)
