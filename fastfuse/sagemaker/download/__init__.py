"""File mode: a channel's objects as files on the host's disk.

`landing` finds what is there already and whether the rest fits, `file_channel` fetches what is missing, and `landing`
puts it in place. A file becomes visible whole, by one rename out of a private directory. The next run continues one
that was killed or that filled the disk.

A killed run loses nothing that was written, because the kernel has it. Whole files are kept, and the parts of others
that their journals name. A power cut may lose data, because fetching does not wait for the disk. So a file of an
earlier boot is trusted only if `settle_channel` ended after it was written. Another one is read again if its ETag tells
an MD5, and fetched again otherwise.

An extended attribute says which version of which object a file is. Where the file system has none (tmpfs before Linux
6.6, NFS before 4.2), a file is kept only if its ETag proves it.
"""
