"""Pipe mode: the objects of a channel through FIFOs, ``<channel>_<epoch>``, one after the other.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html

`channel` is the process; `fifo` the kernel's side of it; `epoch` writes what `order` and `lines` put in sequence, as
`gunzip` and `recordio` make it; `lookahead` keeps the mount's read engine ahead of it. `guard` is for whoever started
the process: with it no reader takes the death of a streamer for the end of an epoch.
"""

from fastfuse.sagemaker.pipe.fifo import Guard, remove_stale
from fastfuse.sagemaker.pipe.pipe_channel import PipeProgress, PipeSettings, stream_channel

__all__ = ["Guard", "PipeProgress", "PipeSettings", "remove_stale", "stream_channel"]
