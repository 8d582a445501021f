"""Pipe mode: the objects of a channel through FIFOs, ``<channel>_<epoch>``, one after the other.

`pipe_channel` is the process, and `fifo` the kernel's side of it. `epoch` prefetches with the mount's read engine what
`content` puts in order, and writes it as `content` decompresses and frames it. With a `Guard`, no reader takes the
death of the streamer for the end of an epoch.
"""
