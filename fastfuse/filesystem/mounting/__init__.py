"""Makes and ends the mount itself, before and after anything serves it.

`mount_settings` says what the mount is to be, and `preflight` whether it can be made. `mount_places` mounts it, by
`mountpoint` or through `fuse_helper`, which has the rights for that.
"""
