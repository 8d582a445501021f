# cython: language_level=3, boundscheck=False, wraparound=False
"""Operations that are put between libfuse and pyfuse3.

Requests are read here, into memory that outlives the worker (`replies.keep`). READ is taken before libfuse knows of it:
a small file is read by a thread (`direct_reads`), everything else goes to `filesystem.serving.reads`. So no task of
pyfuse3 is woken for a read, and none of its coroutines made.

READDIRPLUS: the kernel asks for no OPENDIR once one was answered with ENOSYS, and then it comes with the handle 0.
libfuse still knows the inode, but pyfuse3 (3.5) passes its handler only the handle. So the inode, and the process that
reads, are written into the handle.

LOOKUP and GETATTR are answered here from the columns of the inode table (`index.inodes.columns`), which takes 3 µs
where a handler in Python takes 40. Nothing that the columns say is trusted: whatever does not fit is passed on to the
handler, which refuses it. IOCTL, and GETXATTR of names that cannot be ours, are answered here, too.

This module stands before libfuse's constructor of sessions, through which pyfuse3 registers its operations. Only
libfuse's public API is used. For that, it must be loaded before pyfuse3 and with its symbols visible to it
(RTLD_GLOBAL), as `filesystem.kernel.fuse` does. `filesystem.kernel.session` proves at each mount that it works.
"""

from libc.errno cimport ENAMETOOLONG, ENODATA, ENOTTY
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memmove, memset, strlen, strncmp
from posix.stat cimport struct_stat
from posix.types cimport gid_t, mode_t, off_t, pid_t, uid_t

from fastfuse.filesystem.kernel cimport direct_reads, replies
from fastfuse.filesystem.kernel.direct_reads cimport Job, direct_object

cdef extern from *:
    """
    #define FUSE_USE_VERSION 35
    #include <dlfcn.h>
    #include <errno.h>
    #include <poll.h>
    #include <stdlib.h>
    #include <string.h>
    #include <time.h>
    #include <fuse3/fuse_lowlevel.h>
    #include <linux/fuse.h>

    enum { LEFT, BEGUN, ANSWERED, NOTHING };
    static struct fuse_lowlevel_ops theirs;
    static void (*interpose)(struct fuse_lowlevel_ops *) = NULL;

    static struct fuse_lowlevel_ops ours(const struct fuse_lowlevel_ops *operations, size_t size)
    {
        struct fuse_lowlevel_ops result;
        memset(&theirs, 0, sizeof theirs);
        memcpy(&theirs, operations, size < sizeof theirs ? size : sizeof theirs);
        result = theirs;
        if (interpose)
            interpose(&result);
        return result;
    }

    /* The header may define the names as macros (libfuse 3.17), so only the symbols have them. */
    typedef struct fuse_session *constructor(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *);
    typedef struct fuse_session *versioned_constructor(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t,
                                                       const void *, void *);

    __attribute__((visibility("default"))) constructor new_session __asm__("fuse_session_new");
    struct fuse_session *new_session(struct fuse_args *arguments, const struct fuse_lowlevel_ops *operations,
                                     size_t size, void *data)
    {
        struct fuse_lowlevel_ops all = ours(operations, size);
        constructor *construct = (constructor *) dlsym(RTLD_NEXT, "fuse_session_new");
        return construct ? construct(arguments, &all, sizeof all, data) : NULL;
    }

    /* From libfuse 3.17 on. */
    __attribute__((visibility("default")))
    versioned_constructor new_versioned_session __asm__("fuse_session_new_versioned");
    struct fuse_session *new_versioned_session(struct fuse_args *arguments, const struct fuse_lowlevel_ops *operations,
                                               size_t size, const void *version, void *data)
    {
        struct fuse_lowlevel_ops all = ours(operations, size);
        versioned_constructor *construct =
            (versioned_constructor *) dlsym(RTLD_NEXT, "fuse_session_new_versioned");
        return construct ? construct(arguments, &all, sizeof all, version, data) : NULL;
    }

    static long long now_ns(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    /* The requests that are there are taken here, and only those that libfuse has to know are passed on. */
    static int (*taken)(const char *) = NULL;
    static char *(*next_request)(int, ssize_t *) = NULL;
    static struct fuse_session *served = NULL;
    /* The request that was taken last, if libfuse has to know it; and its size, 0 at the end, or a negative errno. */
    static char *left = NULL;
    static ssize_t left_bytes;

    /* Take the next request, if there is one; return LEFT if libfuse has to know it. */
    static int take_next(void)
    {
        struct fuse_buf request = {.size = 0};
        int what = LEFT;
        left = next_request(fuse_session_fd(served), &left_bytes);
        if (left_bytes == -EINTR)
            what = NOTHING;
        else if (left_bytes > 0)
            what = taken(left);
        if (what == ANSWERED) {
            request.mem = left;
            request.size = left_bytes;
            fuse_session_process_buf(served, &request);
            what = BEGUN;
        }
        if (what != LEFT)
            left = NULL;
        return what;
    }

    /* Wait for a request, or for `events` to be readable; return whether they are. */
    static int wait_for_either(int events, long long for_ns)
    {
        struct pollfd both[2] = {{.fd = fuse_session_fd(served), .events = POLLIN}, {.fd = events, .events = POLLIN}};
        struct timespec longest = {.tv_sec = for_ns / 1000000000, .tv_nsec = for_ns % 1000000000};
        return ppoll(both, 2, &longest, NULL) > 0 && both[1].revents;
    }

    /* Pass a request on in libfuse's own buffer, which pyfuse3 frees. */
    static int pass_on(const char *message, size_t size, struct fuse_buf *buffer)
    {
        void *memory = realloc(buffer->mem, size);
        if (!memory)
            return -ENOMEM;
        memcpy(memory, message, size);
        buffer->mem = memory;
        buffer->size = size;
        return size;
    }

    __attribute__((visibility("default")))
    int receive_request(struct fuse_session *, struct fuse_buf *) __asm__("fuse_session_receive_buf");
    int receive_request(struct fuse_session *session, struct fuse_buf *buffer)
    {
        char *message;
        served = session;
        if (!left && take_next() != LEFT)
            return -EINTR; /* nothing for libfuse: pyfuse3 asks again */
        message = left;
        left = NULL;
        if (!left_bytes)
            fuse_session_exit(session); /* as libfuse does */
        return left_bytes <= 0 ? left_bytes : pass_on(message, left_bytes, buffer);
    }
    """
    ctypedef void *fuse_req_t
    ctypedef uint64_t fuse_ino_t

    struct fuse_ctx:
        pid_t pid

    struct fuse_file_info:
        uint64_t fh

    struct fuse_entry_param:
        fuse_ino_t ino
        struct_stat attr
        double attr_timeout
        double entry_timeout

    struct fuse_lowlevel_ops:
        void (*lookup)(fuse_req_t, fuse_ino_t, const char *) noexcept
        void (*getattr)(fuse_req_t, fuse_ino_t, fuse_file_info *) noexcept
        void (*readdirplus)(fuse_req_t, fuse_ino_t, size_t, off_t, fuse_file_info *) noexcept
        void (*getxattr)(fuse_req_t, fuse_ino_t, const char *, size_t) noexcept
        void (*ioctl)(fuse_req_t, fuse_ino_t, unsigned int, void *, fuse_file_info *, unsigned int, const void *, size_t,
                      size_t) noexcept

    const fuse_ctx *fuse_req_ctx(fuse_req_t) noexcept
    int fuse_reply_entry(fuse_req_t, const fuse_entry_param *) noexcept
    int fuse_reply_err(fuse_req_t, int) noexcept
    int fuse_reply_attr(fuse_req_t, const struct_stat *, double) noexcept

    fuse_lowlevel_ops theirs
    void (*interpose)(fuse_lowlevel_ops *) noexcept
    int LEFT, BEGUN, ANSWERED
    int (*taken)(const char *) noexcept
    char *(*next_request)(int, ssize_t *) noexcept
    char *left
    int64_t now_ns() noexcept nogil
    int take_next() noexcept
    bint wait_for_either(int, int64_t) noexcept nogil

    # The kernel's own: <linux/fuse.h>
    int FUSE_LOOKUP, FUSE_GETATTR, FUSE_GETXATTR, FUSE_READ, FUSE_INTERRUPT, FUSE_IOCTL
    struct fuse_getxattr_in:
        uint32_t size
    struct fuse_in_header:
        uint32_t len, opcode, pid
        uint64_t unique, nodeid

    int FUSE_READ_LOCKOWNER
    struct fuse_read_in:
        uint64_t offset
        uint32_t size, read_flags

# The lower bits of a handle are the inode, the others the process that reads: Linux numbers processes below 2^22.
cdef enum:
    _INODE_BITS = 42
    _DIRECTORY = 0  # of `index.inodes.columns.Kind`
    _FILE_MD5 = 1
    _FILE_MULTIPART = 2
    _FILE_OTHER_ETAG = 3
    _ST_BLOCK_BYTES = 512  # unit of st_blocks, stat(2)
    _NS_PER_S = 1000000000
    _NAME_MAX = 255  # of Linux
    _TURN_NS = 500000  # the loop has its turn after so long: that costs about 30 us, and a fetch takes milliseconds
    _TELL_NS = 5000000  # so long after a read, at most, Python hears of it

HANDLE_INODE_BITS = _INODE_BITS

cdef const char *_HEX = b"0123456789ABCDEF"
cdef const char *_LOWER = b"0123456789abcdef"


cdef struct Columns:
    # None of the pointers is used while this is 0.
    uint64_t rows
    uint64_t names_bytes
    uint64_t other_etags_bytes
    const uint8_t *names
    const uint8_t *other_etags
    const uint64_t *name_ends
    const uint8_t *kinds
    const int64_t *sizes
    const int64_t *mtimes_ns
    # 16 bytes a row: of a directory the row of its first child, and how many there are; of an ETag that is no MD5 its
    # beginning in `other_etags`, and its bytes.
    const uint64_t *spans
    # Keys and ETags are made of these: see `_fill_object`.
    const uint32_t *parents
    const uint8_t *storage_classes
    const uint16_t *etag_parts
    # NULL where the inodes are the rows plus one.
    const uint64_t *inodes
    const uint32_t *inode_rows

cdef Columns table
cdef list _held = []
cdef uid_t _uid
cdef gid_t _gid
cdef mode_t _directory_mode, _file_mode
cdef uint64_t _block_bytes
cdef double _timeout_s
cdef int64_t *_answered = NULL
cdef int64_t *_draining = NULL
cdef object _tell = None
cdef object _take_read = None
# Whether a task of the loop can go on since requests were begun to be taken.
cdef bint _has_task = False
cdef bytes _unread_classes = b""


def answer_from(columns, *, uid_t uid, gid_t gid, mode_t directory_mode, mode_t file_mode, uint64_t block_bytes,
                double timeout_s, int64_t[::1] answered, bytes unread_classes=bytes(256),
                int64_t[::1] draining=None):
    """Answer LOOKUP and GETATTR from `columns`, a table's, from now on, and count each answer in `answered[0]`.

    Pass READs on to `direct_reads` if `draining` is given and 0. `unread_classes` has a 1 for each storage
    class whose objects are left to the handler. All that is given lives on until the next call.
    """
    global _held, _uid, _gid, _directory_mode, _file_mode, _block_bytes, _timeout_s, _answered
    global _unread_classes, _draining
    cdef uint64_t rows = len(columns["kinds"])
    if not rows or ("inodes" in columns) != ("inode_rows" in columns) or len(unread_classes) != 256:
        raise ValueError("no columns of a table")
    table.rows, _held = 0, [answered, draining]
    table.names_bytes = columns["names"].nbytes
    table.names = <const uint8_t *> _lies(columns["names"], table.names_bytes)
    table.other_etags_bytes = len(columns.get("other_etags", ()))
    table.other_etags = <const uint8_t *> _lies(columns.get("other_etags"), table.other_etags_bytes)
    table.name_ends = <const uint64_t *> _lies(columns["name_ends"], 8 * rows)
    table.kinds = <const uint8_t *> _lies(columns["kinds"], rows)
    table.sizes = <const int64_t *> _lies(columns["sizes"], 8 * rows)
    table.mtimes_ns = <const int64_t *> _lies(columns["mtimes_ns"], 8 * rows)
    table.spans = <const uint64_t *> _lies(columns["etags"], 16 * rows)
    table.parents = <const uint32_t *> _lies(columns["parents"], 4 * rows)
    table.storage_classes = <const uint8_t *> _lies(columns["storage_classes"], rows)
    table.etag_parts = <const uint16_t *> _lies(columns["etag_parts"], 2 * rows)
    table.inodes = <const uint64_t *> _lies(columns.get("inodes"), 8 * rows)
    table.inode_rows = <const uint32_t *> _lies(columns.get("inode_rows"), 4 * rows)
    _uid, _gid, _directory_mode, _file_mode = uid, gid, directory_mode, file_mode
    _block_bytes, _timeout_s, _answered = block_bytes, timeout_s, &answered[0]
    _unread_classes = unread_classes
    _draining = NULL if draining is None else &draining[0]
    table.rows = rows


cdef const void *_lies(column, uint64_t size_bytes) except? NULL:
    """Return where a column of so many bytes lies, which is held from now on; NULL without a column."""
    cdef const uint8_t[::1] view
    if column is None:
        return NULL
    view = column.view("uint8")
    if <uint64_t> len(view) != size_bytes:
        raise ValueError("columns of different lengths")
    _held.append(view)
    return &view[0]


def tell_of_reads(tell):
    """Call `tell`, which must raise nothing, when `direct_reads.served` has something: soon, and before other calls."""
    global _tell
    _tell = tell


def take_reads(take):
    """Call `take` with number, inode, offset, size and process of each READ that `direct_reads` leaves: it answers.

    The last argument tells whether the read goes past the page cache.

    It must raise nothing.
    """
    global _take_read
    _take_read = take


def is_left():
    """Return whether a request that `take_requests` took is left to libfuse."""
    return left != NULL


def note_task(task):
    """Note that a task of the loop can go on."""
    global _has_task
    _has_task = True


def take_requests(int events, double for_s):
    """Take requests where the loop would wait for `for_s`, until it has something to do; return whether to wake it.

    It has once the descriptor `events`, for which it waits itself, is readable, or somebody called `note_task`. It is
    woken for the latter, for a request that `is_left`, and once the time is over.
    """
    global _has_task
    cdef int64_t now = now_ns()
    cdef int64_t until = now + <int64_t> (for_s * _NS_PER_S), told = now, turn_ends, wait
    cdef bint is_awake = not for_s
    _has_task = False
    while True:
        turn_ends = now + _TURN_NS
        while left == NULL and now < turn_ends and take_next() == BEGUN:
            replies.end_request()
            now = now_ns()
        if left != NULL or is_awake or _has_task or now >= until:
            break
        if now - told >= _TELL_NS:
            _tell_now()
            told = now
            continue  # it may have woken a task
        wait = min(until, told + _TELL_NS) - now if direct_reads.may_have_news() else until - now
        with nogil:
            is_awake = wait_for_either(events, wait)
        now = now_ns()
    _tell_now()
    if left != NULL:
        replies.put_off()
    return left != NULL or not is_awake


cdef void _tell_now() noexcept:
    if _tell is not None and direct_reads.has_news():
        _tell()


def found(uint64_t parent, bytes name):
    """Return the inode that LOOKUP answers with, 0 if there is no such name, or None if it is left to the handler."""
    cdef uint64_t row = 0
    cdef int is_there = _child(parent, name, &row)
    return None if is_there < 0 else _inode(row) if is_there else 0


def attributes(uint64_t inode):
    """Return ``(mode, size, mtime in ns)`` that GETATTR answers with, or None if it is left to the handler."""
    cdef uint64_t row = 0
    cdef struct_stat stat
    if not _row(inode, &row):
        return None
    _fill(&stat, inode, row)
    return stat.st_mode, stat.st_size, stat.st_mtim.tv_sec * _NS_PER_S + stat.st_mtim.tv_nsec


def object_at(uint64_t inode):
    """Return ``(path, ETag, size)`` of the object that `direct_reads` would get, or None if it is left to Python."""
    cdef direct_object object
    cdef uint64_t row = 0
    if not _row(inode, &row) or not _is_object(row) or not _fill_object(&object, row):
        return None
    return object.path[:object.path_bytes], object.etag[:object.etag_bytes], object.size_bytes


def size_of_small(uint64_t inode):
    """Return the size of a small file that `fetch_ahead` could get now, or 0."""
    cdef uint64_t row = 0
    if not _row(inode, &row) or not _is_object(row) or not direct_reads.may_fetch_ahead(inode, table.sizes[row]):
        return 0
    return table.sizes[row]


def may_be_kept(uint64_t inode):
    """Return whether the local tier may have a small file, or be about to."""
    cdef direct_object object
    cdef uint64_t row = 0
    return _row(inode, &row) and _fill_object(&object, row) and direct_reads.may_be_kept(&object)


def fetch_ahead(uint64_t inode, data):
    """Have threads get a file into `data`, of `size_of_small`, and answer its READs; return whether they begin."""
    cdef direct_object object
    cdef uint64_t row = 0
    if not _row(inode, &row) or <int64_t> len(data) != table.sizes[row] or not _fill_object(&object, row):
        return False
    return direct_reads.fetch_ahead(inode, &object, data)


cdef inline uint64_t _inode(uint64_t row) noexcept:
    return row + 1 if table.inodes == NULL else table.inodes[row]


cdef bint _row(uint64_t inode, uint64_t *row) noexcept:
    """Find the row of `inode`; return whether there is one."""
    cdef uint64_t low = 0, high = table.rows, middle
    if table.inodes == NULL:
        row[0] = inode - 1
        return 0 < inode <= table.rows
    while low < high:
        middle = (low + high) // 2
        if table.inode_rows[middle] >= table.rows:
            return False
        if table.inodes[table.inode_rows[middle]] < inode:
            low = middle + 1
        else:
            high = middle
    if low == table.rows or table.inode_rows[low] >= table.rows:
        return False
    row[0] = table.inode_rows[low]
    return table.inodes[row[0]] == inode


cdef int _child(uint64_t parent, const char *name, uint64_t *row) noexcept:
    """Find the row called `name` in the directory `parent`: 1 if it is there, 0 if not, -1 if the columns are odd."""
    cdef uint64_t low, high, end, middle, start, stop, length = strlen(name), shorter
    cdef int order
    if not _row(parent, row) or table.kinds[row[0]] != _DIRECTORY:
        return -1
    low, high = table.spans[2 * row[0]], table.spans[2 * row[0] + 1]
    if low == 0 or low > table.rows or high > table.rows - low:
        return 0 if high == 0 else -1
    high += low
    while low < high:
        middle = (low + high) // 2
        start, stop = table.name_ends[middle - 1], table.name_ends[middle]
        if start > stop or stop > table.names_bytes:
            return -1
        shorter = min(stop - start, length)
        order = memcmp(table.names + start, name, shorter) if shorter else 0
        if order == 0:
            if stop - start == length:
                row[0] = middle
                return 1
            order = -1 if stop - start < length else 1
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return 0


cdef void _fill(struct_stat *stat, uint64_t inode, uint64_t row) noexcept:
    memset(stat, 0, sizeof(struct_stat))
    stat.st_ino = inode
    stat.st_mode = _directory_mode if table.kinds[row] == _DIRECTORY else _file_mode
    stat.st_nlink = 1
    stat.st_uid, stat.st_gid = _uid, _gid
    stat.st_size = table.sizes[row]
    stat.st_blocks = stat.st_size // _ST_BLOCK_BYTES + (stat.st_size % _ST_BLOCK_BYTES != 0)
    stat.st_blksize = _block_bytes
    stat.st_mtim.tv_sec, stat.st_mtim.tv_nsec = table.mtimes_ns[row] // _NS_PER_S, table.mtimes_ns[row] % _NS_PER_S
    stat.st_atim = stat.st_ctim = stat.st_mtim


cdef void _lookup(fuse_req_t request, fuse_ino_t parent, const char *name) noexcept:
    cdef fuse_entry_param entry
    cdef uint64_t row = 0
    cdef int is_there
    if strlen(name) > _NAME_MAX:  # the kernel asks for up to 1,024 bytes
        fuse_reply_err(request, ENAMETOOLONG)
        return
    is_there = _child(parent, name, &row)
    if is_there < 0:
        theirs.lookup(request, parent, name)
        return
    memset(&entry, 0, sizeof(entry))
    # A name that is not there is the inode 0, and the kernel remembers that, too.
    entry.entry_timeout = entry.attr_timeout = _timeout_s
    if is_there:
        entry.ino = _inode(row)
        _fill(&entry.attr, entry.ino, row)
    _answered[0] += 1
    fuse_reply_entry(request, &entry)


cdef void _getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info *file) noexcept:
    cdef struct_stat stat
    cdef uint64_t row = 0
    if not _row(inode, &row):
        theirs.getattr(request, inode, file)
        return
    _fill(&stat, inode, row)
    _answered[0] += 1
    fuse_reply_attr(request, &stat, _timeout_s)


cdef void _readdirplus(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info *file) noexcept:
    file.fh = <uint64_t> fuse_req_ctx(request).pid << _INODE_BITS | inode
    theirs.readdirplus(request, inode, size, offset, file)


cdef void _getxattr(fuse_req_t request, fuse_ino_t inode, const char *name, size_t size) noexcept:
    cdef uint64_t row = 0
    if _is_ours(name) or not _row(inode, &row):
        theirs.getxattr(request, inode, name, size)
        return
    _answered[0] += 1
    fuse_reply_err(request, ENODATA)


cdef inline bint _is_ours(const char *name) noexcept:
    """Return whether an attribute could be one of ours. `ls -l` asks each file for those of ACLs and SELinux."""
    return strncmp(name, b"user.", 5) == 0


cdef void _ioctl(fuse_req_t request, fuse_ino_t inode, unsigned int command, void *argument, fuse_file_info *file,
                 unsigned int flags, const void *data, size_t in_bytes, size_t out_bytes) noexcept:
    # Before Linux 5.13 callers would get the ENOSYS of libfuse.
    fuse_reply_err(request, ENOTTY)


cdef int _taken(const char *message) noexcept:
    """Begin a read; return whether this is one, or a request that needs no Python."""
    cdef const fuse_in_header *head = <const fuse_in_header *> message
    cdef const fuse_read_in *asked = <const fuse_read_in *> (message + sizeof(fuse_in_header))
    cdef uint64_t row = 0
    if direct_reads.has_much_news():
        # First: what was read decides what is fetched ahead, and who asks next may ask for that.
        _tell_now()
    if head.opcode == FUSE_LOOKUP:
        return ANSWERED if _child(head.nodeid, message + sizeof(fuse_in_header), &row) >= 0 else LEFT
    if head.opcode == FUSE_GETXATTR:
        is_ours = _is_ours(message + sizeof(fuse_in_header) + sizeof(fuse_getxattr_in))
        return LEFT if is_ours or not _row(head.nodeid, &row) else ANSWERED
    if head.opcode == FUSE_INTERRUPT:
        return BEGUN  # no handler ends early, and libfuse does not know the reads of threads
    if head.opcode == FUSE_IOCTL:
        return ANSWERED
    if head.opcode == FUSE_GETATTR:
        return ANSWERED if _row(head.nodeid, &row) else LEFT
    if head.opcode != FUSE_READ:
        return LEFT
    replies.keep_read(message)
    if not _answer_ahead(head, asked) and not _begin_small(head, asked):
        # Only a read past the page cache names an owner of locks.
        is_direct = (asked.read_flags & <uint32_t> FUSE_READ_LOCKOWNER) != 0
        _tell_now()
        _take_read(head.unique, head.nodeid, asked.offset, asked.size, head.pid, is_direct)
    return BEGUN


cdef bint _answer_ahead(const fuse_in_header *head, const fuse_read_in *asked) noexcept:
    return _draining != NULL and not _draining[0] and direct_reads.answer_ahead(
        head.unique, head.nodeid, asked.offset, asked.size, head.pid)


cdef bint _begin_small(const fuse_in_header *head, const fuse_read_in *asked) noexcept:
    """Have a thread read all of a small file; return whether it does."""
    cdef uint64_t row = 0
    cdef Job *job
    if asked.offset or _draining == NULL or _draining[0] or not _row(head.nodeid, &row):
        return False
    if table.sizes[row] > asked.size or not _is_object(row):
        return False
    job = direct_reads.take(head.nodeid, table.sizes[row])
    if job == NULL:
        return False
    if not _fill_object(&job.object, row):
        direct_reads.drop(job)
        return False
    job.unique, job.inode, job.pid, job.asked_bytes = head.unique, head.nodeid, head.pid, asked.size
    return direct_reads.begin(job)


cdef inline bint _is_object(uint64_t row) noexcept:
    return _FILE_MD5 <= table.kinds[row] <= _FILE_OTHER_ETAG and not _unread_classes[table.storage_classes[row]]


cdef bint _fill_object(direct_object *object, uint64_t row) noexcept:
    """Describe the object of a row: its path below the prefix, URL-encoded, ETag, size and time. Return whether it fits."""
    cdef uint64_t at = sizeof(object.path), start, stop, above = row, parent
    cdef unsigned char letter
    cdef const uint8_t *digest = <const uint8_t *> (table.spans + 2 * row)
    while above:
        start, stop = table.name_ends[above - 1], table.name_ends[above]
        parent = table.parents[above]
        if start > stop or stop > table.names_bytes or parent >= above or 3 * (stop - start) + 1 > at:
            return False
        if above != row:
            at -= 1
            object.path[at] = b"/"
        while stop > start:
            stop -= 1
            letter = table.names[stop]
            if letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~":
                at -= 1
                object.path[at] = letter
            else:
                at -= 3
                object.path[at] = b"%"
                object.path[at + 1] = _HEX[letter >> 4]
                object.path[at + 2] = _HEX[letter & 15]
        above = parent
    object.path_bytes = sizeof(object.path) - at
    memmove(object.path, object.path + at, object.path_bytes)
    object.size_bytes, object.modified_s = table.sizes[row], table.mtimes_ns[row] // _NS_PER_S
    if table.kinds[row] == _FILE_OTHER_ETAG:
        start, object.etag_bytes = table.spans[2 * row], table.spans[2 * row + 1]
        if not 2 < object.etag_bytes < sizeof(object.etag) or object.etag_bytes > table.other_etags_bytes:
            return False
        if start > table.other_etags_bytes - object.etag_bytes:
            return False
        for at in range(object.etag_bytes):
            letter = table.other_etags[start + at]
            if not b" " <= letter <= b"~":
                return False
            object.etag[at] = letter
        # One without quotes is sent with them (s3/checks.py).
        return letter == b'"'
    object.etag[0] = b'"'
    for at in range(16):
        object.etag[1 + 2 * at], object.etag[2 + 2 * at] = _LOWER[digest[at] >> 4], _LOWER[digest[at] & 15]
    if table.kinds[row] == _FILE_MULTIPART:
        object.etag_bytes = 33 + snprintf(object.etag + 33, 16, b'-%u"', <unsigned int> table.etag_parts[row])
    else:
        object.etag[33] = b'"'
        object.etag_bytes = 34
    return True


cdef void _interpose(fuse_lowlevel_ops *operations) noexcept:
    operations.lookup, operations.getattr = _lookup, _getattr
    operations.readdirplus, operations.getxattr, operations.ioctl = _readdirplus, _getxattr, _ioctl

interpose = _interpose
taken = _taken
next_request = replies.next_request
