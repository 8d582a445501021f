"""File mode: a channel's objects as files on the host's disk.

`landing` finds what is there already and whether the rest fits, `file_channel` fetches what is missing, and `landing`
puts it in place. A file becomes visible whole, by one rename out of a private directory. After a run that was killed or
that filled the disk, the next one fetches the files that are not in place yet.

A killed run loses no file that is in place, because the kernel has it. A power cut may lose data, because fetching does
not wait for the disk. So a file of an earlier boot is trusted only if `settle_channel` ended after it was written.
Another one is read again if its ETag tells an MD5, and fetched again otherwise.

An extended attribute says which version of which object a file is. Where the file system has none (tmpfs before Linux
6.6, NFS before 4.2), a file is kept only if its ETag proves it.
"""
