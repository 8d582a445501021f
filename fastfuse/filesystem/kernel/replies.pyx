# cython: language_level=3, boundscheck=False, wraparound=False
"""Write the answers of READs to the kernel, past libfuse: large ones from threads that never take the interpreter.

The kernel copies the bytes into the page cache inside the call that writes them, 100 to 200 µs for 1 MiB. Threads make
that call, so that the loop serves the next request meanwhile. When more answers wait than the threads write, the loop
writes one itself.

A request that nobody answers would leave its caller waiting for ever, also if the worker that has read it dies. So every
request is read into memory that outlives the worker, and a READ stays there until it is answered: the next worker begins
with what is left (`keep`). A second answer does no harm, as the kernel refuses it. So a READ whose reader was killed is
answered soon (`refuse_killed`), for the reader cannot end before that. What would lose an answer ends the process. A
worker that ends in order writes what waits first (`finish`).
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, EIO, ENODEV, ENOENT, ENOTCONN, errno
from libc.signal cimport SIGKILL
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from fastfuse.filesystem.kernel.threads cimport (
    PR_SET_NAME, prctl,
    pthread_cond_broadcast, pthread_cond_init, pthread_cond_signal, pthread_cond_t, pthread_cond_wait,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, start_thread,
)

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void *) noexcept, void *) nogil

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t writev(int, const iovec *, int)

cdef extern from "<unistd.h>" nogil:
    void _exit(int)
    ssize_t read(int, void *, size_t)

cdef extern from *:
    """
    /* Another thread sets them, or a death may come between two of them. */
    #define LOADED(number) __atomic_load_n(&(number), __ATOMIC_ACQUIRE)
    #define STORE(number, value) __atomic_store_n(&(number), value, __ATOMIC_RELEASE)
    #define ADD(number, value) __atomic_add_fetch(&(number), value, __ATOMIC_ACQ_REL)
    /* Two threads may answer one READ: the place may have another one when the second is done. */
    static void CLEAR(uint64_t *number, uint64_t value)
    {
        __atomic_compare_exchange_n(number, &value, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    """
    uint64_t LOADED(uint64_t) nogil
    void STORE(uint64_t, uint64_t) nogil
    void ADD(uint64_t, int) nogil
    void CLEAR(uint64_t *, uint64_t) nogil

cdef extern from "<linux/fuse.h>" nogil:
    int FUSE_READ
    struct fuse_out_header:
        uint32_t len
        int error
        uint64_t unique
    struct fuse_in_header:
        uint32_t len, opcode, pid
        uint64_t unique, nodeid
    struct fuse_read_in:
        uint64_t offset
        uint32_t size

cdef enum:
    # Passing a smaller answer to a thread costs more CPU time than copying it: docs/MEASUREMENTS.md, "Mount".
    _LEAST_BYTES = 512 << 10
    # Each that waits pins the memory of a part, so the loop itself writes any more.
    _MOST_WAITING = 8
    # More threads are not known to help.
    _MOST_THREADS = 4
    # The kernel accepts no less, and fills what there is with inodes to forget, up to 16 times before the next READ. It
    # refuses longer requests by itself: an ioctl of more than 8,120 bytes, which nobody makes, with EIO, and with E2BIG
    # a setxattr of a mount that was made writable. No other is longer (`filesystem.kernel.session` sees to that).
    _MESSAGE_BYTES = 8 << 10
    # READs that are kept until they are answered. More than the kernel's own and a thread of each reader.
    _MOST_KEPT = 8192


# A READ that is not answered. It is none if its number is 0.
cdef struct Kept:
    fuse_in_header head
    fuse_read_in asked
    # Workers that crashed while it was under way, and whether it is in this one.
    uint32_t crashes, is_begun
    # Whether `refuse_killed` has seen it.
    uint32_t was_seen
    # When the first worker took it.
    timespec came

# Memory that outlives the worker.
cdef struct Requests:
    # What was read last, or copied from `reads`. It is under way if its number is neither 0 nor that of one of these.
    char message[_MESSAGE_BYTES]
    # READs for which there was no room, and which are not answered.
    uint64_t lost_count
    # The number of the request that this worker began last.
    uint64_t begun
    Kept reads[_MOST_KEPT]

REQUESTS_BYTES = sizeof(Requests)

cdef struct Answer:
    uint64_t unique
    # Holds a reference to what has the bytes.
    Py_buffer view
    Answer *next

cdef Answer answers[_MOST_WAITING + _MOST_THREADS]
cdef pthread_mutex_t lock
cdef pthread_cond_t has_work, has_ended
# All below is used with `lock` held. Those that wait for a thread, oldest first.
cdef Answer *first = NULL
cdef Answer *last = NULL
# Those that are written, whose memory the loop's thread gives back: that takes the interpreter. And the others.
cdef Answer *done = NULL
cdef Answer *free = NULL
cdef int waiting = 0, thread_count = 0
# Answers that the kernel did not take, and why the last of them.
cdef int failed_count = 0, failed = 0
cdef bint is_ending = False, is_told = False
# Answers given to the threads, those that they have written, and how many that were at the last look.
cdef uint64_t queued_count = 0, written_count = 0, seen_count = 0
# Used by the loop's thread: where to write, and when a thread is to do it.
cdef int device = -1, room = _MOST_WAITING
cdef Py_ssize_t large_bytes = _LEAST_BYTES

# Where `keep` says. Before that nobody else has it: the supervisor answers INIT, and no others.
cdef Requests nowhere
cdef Requests *requests = &nowhere
# Used by the loop's thread: the READs of a dead worker, by their places in `requests.reads`, and how many were begun.
cdef int left[_MOST_KEPT]
cdef int left_count = 0, left_begun = 0
# The dead worker's last request is still to be begun.
cdef bint is_last_left = False
cdef object _memory = None

pthread_mutex_init(&lock, NULL)
pthread_cond_init(&has_work, NULL)
pthread_cond_init(&has_ended, NULL)


def keep(memory):
    """Keep requests in `memory`, of `REQUESTS_BYTES`, until they are answered, and begin with those that are there.

    Return when READs that are there came, by their numbers, on the clock of `time.monotonic`.
    """
    global requests, left_count, left_begun, is_last_left, _memory
    cdef uint8_t[::1] view = memory
    cdef uint64_t last
    cdef timespec *came
    if len(view) != sizeof(Requests):
        raise ValueError("no memory for requests")
    _memory, requests = view, <Requests *> &view[0]
    last = (<fuse_in_header *> requests.message).unique
    found, came_s = [], {}
    for at in range(_MOST_KEPT):
        came = &requests.reads[<int> at].came
        unique = requests.reads[<int> at].head.unique
        if unique:
            found.append((unique, at))
            came_s[unique] = came.tv_sec + came.tv_nsec * 1e-9
        if unique == last:
            last = 0  # it is kept, and the worker may have died while it copied that to `message`
    for place, (_, at) in enumerate(sorted(found)):
        left[<int> place] = at
    left_begun, left_count, is_last_left, requests.begun = 0, len(found), last != 0, 0
    return came_s


def are_left():
    """Note that the last request is answered or kept; return whether some of a dead worker are still to be begun."""
    end_request()
    return is_last_left or left_begun < left_count


cdef void put_off() noexcept:
    """Note that nobody has begun the last request yet, but will."""
    STORE(requests.begun, 0)


def begin_put_off():
    """Note that the last request is begun after all."""
    STORE(requests.begun, (<fuse_in_header *> requests.message).unique)


cdef void end_request() noexcept:
    """Note that the last request is answered or kept."""
    if not is_last_left:
        STORE((<fuse_in_header *> requests.message).unique, 0)


def are_all_kept(memory):
    """Return whether `memory` has every request that was read and not answered."""
    cdef const uint8_t[::1] view = memory
    return not (<const Requests *> &view[0]).lost_count


def owed(memory):
    """Return the numbers of the requests in `memory` that were read and are not answered."""
    cdef uint8_t[::1] view = memory
    cdef Requests *kept = <Requests *> &view[0]
    cdef uint64_t unique = LOADED((<fuse_in_header *> kept.message).unique)
    cdef int at
    numbers = {unique}
    for at in range(_MOST_KEPT):
        unique = LOADED(kept.reads[at].head.unique)
        if unique:
            numbers.add(unique)
    return numbers - {0}


def reads_left(memory, bint has_crashed):
    """Return the READs that a dead worker left, and note its crash in those that it had begun, if it `has_crashed`.

    Each is ``(number, (inode, offset, size), workers that crashed with it under way, whether this one did)``. Call it
    once after every death.
    """
    cdef uint8_t[::1] view = memory
    cdef Requests *left_behind = <Requests *> &view[0]
    cdef Kept *one
    cdef int at
    cdef bint is_blamed
    found = []
    for at in range(_MOST_KEPT):
        one = &left_behind.reads[at]
        if one.head.unique:
            is_blamed, one.is_begun = has_crashed and one.is_begun, False
            one.crashes += is_blamed
            asked = one.head.nodeid, one.asked.offset, one.asked.size
            found.append((one.head.unique, asked, one.crashes, is_blamed))
    return found


def under_way(memory):
    """Return number, operation and inode of the request that a dead worker was at; None if there is none but READs.

    Ask once after every death: the next worker may die before it begins one.
    """
    cdef uint8_t[::1] view = memory
    cdef Requests *left_behind = <Requests *> &view[0]
    cdef fuse_in_header *head = <fuse_in_header *> left_behind.message
    cdef uint64_t begun = left_behind.begun
    left_behind.begun = 0
    if not head.unique or head.unique != begun or head.opcode == FUSE_READ:
        return None
    return head.unique, head.opcode, head.nodeid


def fail_under_way(memory, int device_fd, int error):
    """Answer the request of `under_way` with the errno `error`, and forget it; return False if it stays."""
    cdef uint8_t[::1] view = memory
    cdef fuse_in_header *head = <fuse_in_header *> &view[0]
    if write_reply(device_fd, head.unique, error, NULL, 0):
        return False
    head.unique = 0
    return True


cdef char *next_request(int device, ssize_t *size_bytes) noexcept:
    """Return the next request, one of a dead worker first, and its size: 0 if the mount is gone, or a negative errno.

    The request before must be answered, or a READ that is kept.
    """
    global is_last_left, left_begun
    cdef fuse_in_header *head
    cdef Kept *read_left
    head = <fuse_in_header *> requests.message
    if is_last_left:
        is_last_left = False
        size_bytes[0] = head.len
    elif left_begun < left_count:
        read_left = &requests.reads[left[left_begun]]
        memcpy(requests.message, read_left, sizeof(Kept))
        STORE(read_left.head.unique, 0)
        left_begun += 1
        size_bytes[0] = head.len
    else:
        STORE(head.unique, 0)
        # Of the READ that may come.
        (<Kept *> head).crashes = (<Kept *> head).was_seen = 0
        clock_gettime(CLOCK_MONOTONIC, &(<Kept *> head).came)
        size_bytes[0] = read(device, requests.message, _MESSAGE_BYTES)
        if size_bytes[0] < 0:
            # ENOENT: the caller was killed. ENODEV: the mount is gone.
            size_bytes[0] = 0 if errno == ENODEV else -EINTR if errno in (EAGAIN, ENOENT) else -errno
    STORE(requests.begun, head.unique)
    return requests.message


cdef void keep_read(const char *message) noexcept nogil:
    """Keep a READ of `next_request` until it is answered. It begins now, unless it waits for `begin_read`."""
    cdef Kept one = (<const Kept *> message)[0]
    cdef Kept *place
    cdef uint64_t unique = one.head.unique
    one.head.unique, one.is_begun = 0, not one.crashes
    place = place_of(0, unique)
    if place == NULL:
        ADD(requests.lost_count, 1)
        return
    place[0] = one
    STORE(place.head.unique, unique)


def begin_read(uint64_t number):
    """Note that a READ begins with which a worker crashed."""
    cdef Kept *one = place_of(number, number)
    if one != NULL:
        one.is_begun = True


cdef void forget_read(uint64_t unique, bint is_taken) noexcept nogil:
    """Keep a READ no longer: it is answered. Unless the kernel took this answer, another one may have been before it."""
    cdef Kept *one = place_of(unique, unique)
    if one != NULL:
        CLEAR(&one.head.unique, unique)
    elif is_taken and LOADED(requests.lost_count):
        ADD(requests.lost_count, -1)


cdef Kept *place_of(uint64_t held, uint64_t unique) noexcept nogil:
    """Return the first place from that of the READ `unique` on that has the number `held`; NULL if none has."""
    cdef uint64_t at, place
    for at in range(_MOST_KEPT):
        place = ((unique >> 1) + at) % _MOST_KEPT  # the kernel counts requests by twos
        if LOADED(requests.reads[place].head.unique) == held:
            return &requests.reads[place]
    return NULL


def threads_for(int cores):
    """Return how many threads write: all cores but the loop's, up to four; none on a single core."""
    return max(0, min(cores - 1, _MOST_THREADS))


def start(int device_fd, int threads, *, Py_ssize_t least_bytes=_LEAST_BYTES, int most_waiting=_MOST_WAITING):
    """Write to the kernel's connection `device_fd`, from as many threads of `threads` as the system has room for.

    Return the errno with which it refused one, or 0. Threads write answers of at least `least_bytes`, while no more
    than `most_waiting` wait.
    """
    global device, large_bytes, room, is_ending, thread_count, free
    cdef int at, error = 0
    device, large_bytes, room, is_ending, free = device_fd, least_bytes, min(most_waiting, _MOST_WAITING), False, NULL
    for at in range(_MOST_WAITING + _MOST_THREADS):
        answers[at].next, free = free, &answers[at]
    for at in range(min(threads, _MOST_THREADS)):
        error = start_thread(write_answers, NULL)
        if error:
            break
        thread_count += 1
    return error


def finish():
    """Write all that waits, and end the threads."""
    global is_ending
    with nogil:
        pthread_mutex_lock(&lock)
        is_ending = True
        pthread_cond_broadcast(&has_work)
        while thread_count:
            pthread_cond_wait(&has_ended, &lock)
        pthread_mutex_unlock(&lock)
    let_go(NULL)


def answer(uint64_t number, data):
    """Answer the READ `number` with `data`, to which a reference is held until it is written."""
    global free, first, last, waiting, queued_count
    cdef Answer *one = NULL
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < large_bytes:
        write_or_fail(number, &view)
        PyBuffer_Release(&view)
        return
    pthread_mutex_lock(&lock)
    if thread_count and waiting < room and free != NULL:
        one = free
        free = one.next
        one.unique, one.view, one.next = number, view, NULL
        if first == NULL:
            first = one
        else:
            last.next = one
        last = one
        waiting += 1
        queued_count += 1
        pthread_cond_signal(&has_work)
    pthread_mutex_unlock(&lock)
    if one == NULL:
        with nogil:
            write_or_fail(number, &view)
        PyBuffer_Release(&view)


def refuse(uint64_t number, int error):
    """Answer the READ `number` with the errno `error`."""
    write_error(number, error)


def refuse_killed():
    """Answer the READs that were there at the last call, too, and whose reader was killed.

    The kernel does not tell of every one: no signal interrupts a read past the page cache.
    """
    cdef Kept *one
    cdef uint64_t unique
    cdef int at
    if left_begun < left_count:
        return
    killed = {}
    for at in range(_MOST_KEPT):
        one = &requests.reads[at]
        unique = LOADED(one.head.unique)
        if unique and one.was_seen:
            if one.head.pid not in killed:
                killed[one.head.pid] = _is_killed(one.head.pid)
            # One that the kernel does not take is of a READ that somebody answers now, who then forgets it.
            if killed[one.head.pid] and put_reply(device, unique, EINTR, NULL, 0):
                forget_read(unique, True)
        one.was_seen = unique != 0


def _is_killed(pid):
    """Return whether SIGKILL is pending, as it is in each thread of a process that any signal kills."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
            return int(status.read().partition(b"\nSigPnd:\t")[2][:16], 16) >> SIGKILL - 1 & 1
    except OSError:
        return False  # of another PID namespace, or gone


def are_moving():
    """Return whether the threads have written an answer since the last call, or have none to write."""
    global seen_count
    cdef bint moving
    pthread_mutex_lock(&lock)
    moving = written_count == queued_count or written_count != seen_count
    seen_count = written_count
    pthread_mutex_unlock(&lock)
    return moving


def not_taken():
    """Return how many answers the kernel did not take since the last call, so that their reads failed, and an errno."""
    global failed_count
    pthread_mutex_lock(&lock)
    count, failed_count = failed_count, 0
    pthread_mutex_unlock(&lock)
    return count, failed


cdef int let_go(void *unused) noexcept:
    """Give back the memory of what is written."""
    global done, free, is_told
    cdef Answer *one
    cdef Py_buffer view
    while True:
        pthread_mutex_lock(&lock)
        is_told = False
        one = done
        if one != NULL:
            done = one.next
            view = one.view
            one.next, free = free, one
        pthread_mutex_unlock(&lock)
        if one == NULL:
            return 0
        PyBuffer_Release(&view)


cdef void *write_answers(void *unused) noexcept nogil:
    """Write what waits, until `finish`."""
    global first, last, done, waiting, written_count, thread_count, is_told
    cdef Answer *one
    cdef int error
    cdef bint tells
    prctl(PR_SET_NAME, "fastfuse-reply")
    pthread_mutex_lock(&lock)
    while True:
        while first == NULL and not is_ending:
            pthread_cond_wait(&has_work, &lock)
        if first == NULL:
            break
        one = first
        first = one.next
        waiting -= 1
        pthread_mutex_unlock(&lock)
        write_or_fail(one.unique, &one.view)
        pthread_mutex_lock(&lock)
        written_count += 1
        one.next, done = done, one
        tells, is_told = not is_told, True
        if tells:
            # The loop's thread does it when it runs next, whatever for. An idle loop needs no memory.
            pthread_mutex_unlock(&lock)
            error = Py_AddPendingCall(let_go, NULL)
            pthread_mutex_lock(&lock)
            if error:  # too many calls wait; the next answer tries again
                is_told = False
    thread_count -= 1
    pthread_cond_signal(&has_ended)
    pthread_mutex_unlock(&lock)
    return NULL


cdef bint put_reply(int device, uint64_t unique, int error, const void *data, size_t size_bytes) noexcept nogil:
    """Write a reply; return whether the kernel took it, or else set `errno`."""
    cdef fuse_out_header head
    cdef iovec parts[2]
    head.len, head.error, head.unique = sizeof(head) + size_bytes, -error, unique
    parts[0].iov_base, parts[0].iov_len = &head, sizeof(head)
    parts[1].iov_base, parts[1].iov_len = <void *> data, size_bytes
    return writev(device, parts, 2) >= 0


cdef int write_reply(int device, uint64_t unique, int error, const void *data, size_t size_bytes) noexcept nogil:
    """Write a reply; return 0, or an errno if the kernel does not take it, and still waits for one."""
    cdef bint is_taken = put_reply(device, unique, error, data, size_bytes)
    # ENOENT: it was answered before, or the reader was killed. The others: the mount is gone.
    if is_taken or errno in (ENOENT, ENODEV, ENOTCONN, ECONNABORTED):
        forget_read(unique, is_taken)
        return 0
    return errno


cdef void write_or_fail(uint64_t unique, const Py_buffer *view) noexcept nogil:
    """Answer with the bytes of `view`, or with EIO if the kernel does not take them."""
    global failed, failed_count
    cdef int error = write_reply(device, unique, 0, view.buf, view.len)
    if error:
        pthread_mutex_lock(&lock)
        failed = error
        failed_count += 1
        pthread_mutex_unlock(&lock)
        write_error(unique, EIO)


cdef void write_error(uint64_t unique, int error) noexcept nogil:
    if write_reply(device, unique, error, NULL, 0):
        _exit(1)
