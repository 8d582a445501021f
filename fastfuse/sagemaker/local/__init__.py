"""Channels that are directories of this host: on its own disk, or of a file system that is mounted (EFS, FSx, NFS).

`file_systems` tells where a job's file systems are mounted, and `finding` looks at a channel's directory. In File and
FastFile mode `placing` puts it at the channel's place without a copy. `file_listing` lists the directory, for Pipe mode
and for a host's share, and `file_reader` reads its files in the place of an S3 client.
"""
