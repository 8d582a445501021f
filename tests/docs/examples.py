"""``make examples``: run every example of docs/EXAMPLES.md on a real mount, with a Python that has the libraries."""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import fastfuse
from bench.s3server import LoopbackServer, MemoryObjects
from tests.docs.blocks import ROOT, blocks_of

EXAMPLES = {block.heading: block.text for block in blocks_of("docs/EXAMPLES.md") if block.language == "python"}
# The samples of each kind, in four files, and an image a file; each example reads them twice.
_SAMPLES = 32


def _tar(numbers: range) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in numbers:
            for suffix, data in (("bin", bytes(1000)), ("cls", b"%d" % number)):
                member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _records(numbers: range) -> bytes:
    from tfrecord.writer import TFRecordWriter  # loads PyTorch where it is

    with tempfile.NamedTemporaryFile() as file:
        writer = TFRecordWriter(file.name)
        for number in numbers:
            writer.write({"number": (number, "int"), "data": (bytes(1000), "byte")})
        writer.close()
        return Path(file.name).read_bytes()


def _table(numbers: range) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    packed = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"text": [str(number) * 100 for number in numbers]}), packed)
    return packed.getvalue()


def _objects() -> MemoryObjects:
    objects = {f"train/images/{number}.bin": bytes([number]) * 1000 for number in range(_SAMPLES)}
    for shard in range(4):
        numbers = range(shard, _SAMPLES, 4)
        objects[f"train/shards/{shard}.tar"] = _tar(numbers)
        objects[f"train/records/{shard}.tfrecord"] = _records(numbers)
        objects[f"train/tables/{shard}.parquet"] = _table(numbers)
    return MemoryObjects(objects)


def run_examples(python: str, headings: list[str], scratch: Path) -> dict[str, str]:
    """Run examples with a Python, and return what each prints at its end."""
    found = {}
    with (
        LoopbackServer({"my-bucket": _objects()}) as server,
        fastfuse.mount(
            "s3://my-bucket/train",
            endpoint_url=server.endpoint_url,
            force_path_style=True,
            region="us-east-1",
            no_sign_request=True,
            training=True,
        ) as mnt,  # no log in the scratch directory: the daemon may write it after the mount is gone
    ):
        for heading in headings:
            script = scratch / "example.py"
            script.write_text(EXAMPLES[heading].replace("/mnt/train", str(mnt.path)))
            # Nothing of the examples asks for the network, and Hugging Face keeps notes at home.
            quiet = {"HF_HUB_OFFLINE": "1", "HOME": str(scratch), "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [python, script], env=os.environ | quiet, stdout=subprocess.PIPE, text=True, check=True
            )
            found[heading] = done.stdout.splitlines()[-1]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        found = run_examples(sys.argv[1], [*EXAMPLES], Path(scratch))
    for heading, printed in found.items():
        print(f"{heading}: {printed}")
    if set(found.values()) != {f"{2 * _SAMPLES} samples"}:
        raise SystemExit("an example did not read everything twice")


if __name__ == "__main__":
    main()
