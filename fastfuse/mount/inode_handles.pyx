# cython: language_level=3
"""Tell pyfuse3's handlers which inode is read, where the kernel opens nothing.

The kernel asks for no OPEN and no OPENDIR once one was answered with ENOSYS, and every READ and READDIRPLUS then comes
with the handle 0. libfuse still knows the inode, but pyfuse3 (3.5) passes its handlers only the handle. This module
stands before libfuse's constructor of sessions, through which pyfuse3 registers its operations: it puts functions of
its own before the two operations, and they write the inode into the handle. Only libfuse's public API is used.

For that, this module must be loaded before pyfuse3 and with its symbols visible to it (RTLD_GLOBAL): `fastfuse.mount`
does that. `mount.session` proves with the first mounted request of a process that it works.
"""

cdef extern from *:
    """
    #define FUSE_USE_VERSION 35
    #include <dlfcn.h>
    #include <string.h>
    #include <fuse3/fuse_lowlevel.h>

    #define VISIBLE __attribute__((visibility("default")))
    /* Linux gives processes numbers below 2^22. */
    #define INODE_BITS 42

    static struct fuse_lowlevel_ops theirs;

    static void with_inode(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file)
    {
        file->fh = (uint64_t) fuse_req_ctx(request)->pid << INODE_BITS | inode;
    }

    static void read_by_inode(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset,
                              struct fuse_file_info *file)
    {
        with_inode(request, inode, file);
        theirs.read(request, inode, size, offset, file);
    }

    static void readdirplus_by_inode(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset,
                                     struct fuse_file_info *file)
    {
        with_inode(request, inode, file);
        theirs.readdirplus(request, inode, size, offset, file);
    }

    static struct fuse_lowlevel_ops by_inode(const struct fuse_lowlevel_ops *operations, size_t size)
    {
        struct fuse_lowlevel_ops ours;

        memset(&theirs, 0, sizeof theirs);
        memcpy(&theirs, operations, size < sizeof theirs ? size : sizeof theirs);
        ours = theirs;
        if (theirs.read)
            ours.read = read_by_inode;
        if (theirs.readdirplus)
            ours.readdirplus = readdirplus_by_inode;
        return ours;
    }

    /* The header may define the name as a macro (libfuse 3.17), so only the symbol has it. */
    typedef struct fuse_session *constructor(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *);
    typedef struct fuse_session *versioned_constructor(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t,
                                                       const void *, void *);

    VISIBLE constructor new_session __asm__("fuse_session_new");
    struct fuse_session *new_session(struct fuse_args *arguments, const struct fuse_lowlevel_ops *operations,
                                     size_t size, void *data)
    {
        struct fuse_lowlevel_ops ours = by_inode(operations, size);
        constructor *construct = (constructor *) dlsym(RTLD_NEXT, "fuse_session_new");
        return construct ? construct(arguments, &ours, sizeof ours, data) : NULL;
    }

    /* From libfuse 3.17 on. */
    VISIBLE versioned_constructor new_versioned_session __asm__("fuse_session_new_versioned");
    struct fuse_session *new_versioned_session(struct fuse_args *arguments, const struct fuse_lowlevel_ops *operations,
                                               size_t size, const void *version, void *data)
    {
        struct fuse_lowlevel_ops ours = by_inode(operations, size);
        versioned_constructor *construct =
            (versioned_constructor *) dlsym(RTLD_NEXT, "fuse_session_new_versioned");
        return construct ? construct(arguments, &ours, sizeof ours, version, data) : NULL;
    }
    """
    enum: INODE_BITS


#: The lower bits of a handle are the inode, the others the process that reads.
HANDLE_INODE_BITS = INODE_BITS
