# Part of `direct_reads`: small files that are fetched before anybody reads them.
#
# One is queued by the loop's thread, and then got by a thread, which keeps it and answers the READs that wait for it. The
# loop's thread answers later ones, and lets go of it. Python hears of the GET and of each READ (`served`).

cdef bint may_fetch_ahead(uint64_t inode, uint64_t size_bytes) noexcept:
    """Return whether threads could fetch a file ahead that nobody else has in hand."""
    cdef bint may
    if inode >= marked or marks[inode] or not 0 < size_bytes <= _MOST_BYTES:
        return False
    pthread_mutex_lock(&lock)
    may = route != NULL and direct_now_ns() < route.ends_ns and has_room_for_record()
    pthread_mutex_unlock(&lock)
    return may


cdef bint may_be_kept(const direct_object *object) noexcept:
    """Return whether the local tier may have a file, or be about to."""
    cdef int64_t object_id
    cdef uint64_t seed
    return is_tier_used and not is_new(object, &object_id, &seed)


cdef bint fetch_ahead(uint64_t inode, const direct_object *object, data) except? False:
    """Fetch a file for which that is true; return whether it is on its way."""
    global first_queued, last_queued, promised, ahead_bytes
    cdef Thread *thread = NULL
    cdef Ahead *one = new_ahead(inode, object, data)
    if one == NULL:
        return False
    marks[inode] |= _AHEAD
    files_ahead[inode] = <size_t> one
    ahead_bytes += one.data.len
    pthread_mutex_lock(&lock)
    promised += 1
    if last_queued == NULL:
        first_queued = one
    else:
        last_queued.next = one
    last_queued = one
    pthread_mutex_unlock(&lock)
    if ahead_in_flight < most_ahead():
        thread = taken_thread(True, True)
    if thread != NULL:
        drop(&thread.job)
    elif not thread_count:
        forget_ahead(one)  # the system refuses threads, and it would be queued for ever
        return False
    return True


cdef Ahead *new_ahead(uint64_t inode, const direct_object *object, data) except? NULL:
    """Return a file that is to be fetched ahead, or NULL."""
    cdef Ahead *one
    cdef Py_buffer memory
    cdef int64_t object_id = _NOT_KEPT
    cdef uint64_t seed = 0
    if is_tier_used and not is_new(object, &object_id, &seed):
        return NULL
    PyObject_GetBuffer(data, &memory, PyBUF_WRITABLE)
    # Without the room that the longest names would take: thousands may be queued.
    one = <Ahead *> calloc(1, sizeof(Ahead) + object.path_bytes + object.etag_bytes)
    if one == NULL:
        PyBuffer_Release(&memory)
        return NULL
    one.inode, one.data, one.unread_bytes, one.uses = inode, memory, memory.len, 2
    one.object_id, one.seed = object_id, seed
    one.names, one.path_bytes, one.etag_bytes = <char *> (one + 1), object.path_bytes, object.etag_bytes
    memcpy(one.names, object.path, object.path_bytes)
    memcpy(one.names + object.path_bytes, object.etag, object.etag_bytes)
    return one


cdef inline int most_ahead() noexcept nogil:
    """Return how many files are fetched ahead at once: a quarter of the threads is left to files that are read."""
    return most_threads - most_threads // 4


cdef inline void rest(Thread *thread) noexcept nogil:
    """Have `thread`, which has no job, go on with what is queued, or wait for the next."""
    global idle
    if not begin_queued(thread):
        thread.next_idle, idle = idle, thread


cdef bint begin_queued(Thread *thread) noexcept nogil:
    """Have `thread` get the file that is queued longest; return whether there is one for it."""
    global first_queued, last_queued, ahead_in_flight
    cdef Ahead *one = first_queued
    cdef direct_object *object = &thread.job.object
    if one == NULL or ahead_in_flight >= most_ahead():
        return False
    first_queued = one.next
    if first_queued == NULL:
        last_queued = NULL
    one.state, thread.ahead = _RUNNING, one
    object.path_bytes, object.etag_bytes, object.size_bytes = one.path_bytes, one.etag_bytes, one.data.len
    memcpy(object.path, one.names, one.path_bytes)
    memcpy(object.etag, one.names + one.path_bytes, one.etag_bytes)
    object.target, thread.job.inode = NULL, one.inode
    thread.object_id, thread.seed, thread.is_missing = one.object_id, one.seed, False
    ahead_in_flight += 1
    hand_over(thread)
    return True


cdef void end_ahead(Thread *thread, Record *record, const char *body) noexcept nogil:
    """Tell of what `thread` got, if there is a `body`, and answer the READs that wait. Drops the lock meanwhile."""
    global ahead_in_flight, promised, attached
    cdef Ahead *one = thread.ahead
    cdef Record *waiting = one.waiting
    cdef Record *read
    cdef bint is_answered
    one.state, one.waiting, thread.ahead = _HERE if body != NULL else _FAILED, NULL, NULL
    record.kind, record.ahead, record.is_right = _GOT_AHEAD, one, body != NULL
    tell(record)  # `one` may be gone once the lock is
    ahead_in_flight -= 1  # not before: `may_have_news`
    promised -= 1
    while waiting != NULL:
        read, is_answered = waiting, body != NULL
        waiting = read.next
        promised -= 1
        if is_answered:
            read.took_ns = direct_now_ns() - read.began_ns
            tell(read)
            pthread_mutex_unlock(&lock)
            is_answered = write_reply(device, read.unique, 0, body + read.offset, read.size_bytes) == 0
            pthread_mutex_lock(&lock)
        attached -= 1
        if is_answered:
            count_wait(-1)
        else:
            return_read(read)
        free(read)


cdef bint answer_ahead(uint64_t unique, uint64_t inode, uint64_t offset, uint32_t asked_bytes, uint32_t pid) noexcept:
    """Answer a READ of a file ahead, now or once it is here; return False if there is none, or it is left to others."""
    global promised, attached
    cdef Ahead *one = ahead_of(inode)
    cdef Record *read
    cdef bint is_left
    if one == NULL or offset >= <uint64_t> one.data.len:
        return False
    read = <Record *> calloc(1, sizeof(Record))
    if read == NULL:
        return False
    read.kind, read.unique, read.inode, read.offset, read.pid = _READ_AHEAD, unique, inode, offset, pid
    read.asked_bytes, read.size_bytes = asked_bytes, min(<uint64_t> asked_bytes, <uint64_t> one.data.len - offset)
    read.began_ns, read.status, read.is_first = direct_now_ns(), _TOLD, not one.is_begun
    pthread_mutex_lock(&lock)
    is_left = one.state not in (_RUNNING, _HERE) or not has_room_for_record()
    if not is_left:
        marks[inode] |= _BY_THREAD  # until Python has heard of this READ
        promised += 1
        one.unread_bytes -= read.size_bytes
        if one.state == _RUNNING:
            read.has_waited, read.next, one.waiting = True, one.waiting, read
            attached += 1
            count_wait(1)
            pthread_mutex_unlock(&lock)
            note_begun(one)
            return True
    pthread_mutex_unlock(&lock)
    if not is_left:
        is_left = write_reply(device, unique, 0, <char *> one.data.buf + offset, read.size_bytes) != 0
        read.took_ns = direct_now_ns() - read.began_ns
        pthread_mutex_lock(&lock)
        promised -= 1
        if not is_left:
            tell(read)
        pthread_mutex_unlock(&lock)
    free(read)
    if is_left:
        marks[inode] &= ~_BY_THREAD
    if is_left or one.unread_bytes <= 0:
        forget_ahead(one)
    else:
        note_begun(one)
    return not is_left


cdef void note_begun(Ahead *one) noexcept:
    """Note that a file is read in part. No order drops it any more, so the oldest such files go: nobody may read on."""
    global begun_bytes
    if one.is_begun:
        return
    one.is_begun = True
    begun_ahead[one.inode] = None
    begun_bytes += one.data.len
    while begun_bytes > most_begun_bytes:
        forget_ahead(ahead_of(next(iter(begun_ahead))))


cdef inline Ahead *ahead_of(uint64_t inode) noexcept:
    """Return what there is of a file ahead, or NULL."""
    return <Ahead *> <size_t> files_ahead[inode] if inode < marked and marks[inode] & _AHEAD else NULL


cdef void forget_ahead(Ahead *one) noexcept:
    """Answer nothing more from `one`; its memory goes once no thread has it."""
    global first_queued, last_queued, promised, begun_bytes, wasted_bytes
    cdef Ahead *before = NULL
    cdef Ahead *queued
    if ahead_of(one.inode) != one:
        return
    del files_ahead[one.inode]
    marks[one.inode] &= ~_AHEAD
    if one.is_begun:
        del begun_ahead[one.inode]
        begun_bytes -= one.data.len
    pthread_mutex_lock(&lock)
    if one.state == _QUEUED:
        queued = first_queued
        while queued != one:
            before, queued = queued, queued.next
        if before == NULL:
            first_queued = one.next
        else:
            before.next = one.next
        if last_queued == one:
            last_queued = before
        one.uses -= 1
        promised -= 1
    elif one.state != _FAILED:
        wasted_bytes += max(0, one.unread_bytes)
    pthread_mutex_unlock(&lock)
    let_go_ahead(one)


cdef void let_go_ahead(Ahead *one) noexcept:
    global ahead_bytes
    one.uses -= 1
    if not one.uses:
        ahead_bytes -= one.data.len
        PyBuffer_Release(&one.data)
        free(one)


cdef void end_get_ahead(const Record *record) noexcept:
    """Hear of the GET of a file ahead."""
    if not record.is_right or record.ahead.unread_bytes <= 0:
        forget_ahead(record.ahead)
    let_go_ahead(record.ahead)


def drop_ahead(uint64_t inode):
    """Keep nothing of a file ahead. Return whether it was one."""
    cdef Ahead *one = ahead_of(inode)
    if one != NULL:
        forget_ahead(one)
    return one != NULL


def bound_begun_ahead(int64_t size_bytes):
    """Keep at most so many bytes of files of which a part is read: their readers may not go on."""
    global most_begun_bytes
    most_begun_bytes = size_bytes


def drop_all_ahead():
    """Keep nothing of any file ahead."""
    for inode in tuple(files_ahead):
        drop_ahead(inode)


def held_ahead():
    """Return the number of files ahead, and how many bytes they take."""
    return len(files_ahead), ahead_bytes


def wasted_ahead_bytes():
    """Return how many bytes were fetched ahead and dropped before anybody asked for them."""
    return wasted_bytes
