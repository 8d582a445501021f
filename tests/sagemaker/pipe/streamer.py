"""``python -m tests.sagemaker.pipe.streamer JSON``: indexes a source and streams it, telling on standard output."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from fastfuse.errors import FastfuseError
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.pipe.fifo import Guard
from fastfuse.sagemaker.pipe.pipe_channel import PipeSettings, PipeStream, stream_channel


def tell(**told: Any) -> None:  # noqa: ANN401 - whatever JSON can carry
    print(json.dumps(told), flush=True)


def main(
    *,
    endpoint_url: str,
    source: str,
    directory: str,
    kind: str = "S3Prefix",
    attribute_names: tuple[str, ...] = (),
    part_size_bytes: int = 8 << 20,
    verify: bool = False,
    **fields: Any,  # noqa: ANN401 - those of Channel
) -> int:
    connection = ConnectionConfig(
        endpoint_url=endpoint_url, region="us-east-1", sign_request=False, force_path_style=True, verify=verify
    )
    fd = os.memfd_create("index")
    origin = IndexOrigin(kind=SourceKind(kind), attribute_names=tuple(attribute_names), allow_empty=True)
    if wait_child(fork_child(lambda: make_index(S3Uri.parse(source), origin, S3Session(connection), fd))):
        return 99
    channel = Channel(
        name="train",
        input_mode=InputMode.PIPE,
        source=S3Uri.parse(source),
        source_kind=origin.kind,
        attribute_names=origin.attribute_names,
        **fields,
    )
    fifos, guard = Path(directory), Guard()
    guard.hand_over()  # to nobody
    pipe = PipeSettings(
        channel=channel, connection=connection, directory=fifos, base=fifos.parent, counters=Counters(),
        part_size_bytes=part_size_bytes, memory_target_bytes=1 << 30, guard=guard, begin_fd=os.eventfd(1),
    )  # fmt: skip

    def report(stream: PipeStream) -> None:
        names = ("epoch", "written_bytes", "fetched_bytes", "requests")
        tell(progress={name: getattr(stream, name) for name in names}, error=str(stream.failure or ""))

    try:
        stream_channel(fd, pipe, ready=lambda: tell(ready=True), report=report)
    except FastfuseError as error:
        tell(raised=str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
