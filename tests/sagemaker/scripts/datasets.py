"""What the scripts read: objects, and the hashes of the records in them, made without the scripts."""

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random
from typing import Any

import numpy as np
from tfrecord.writer import TFRecordWriter

from bench.shards import frame
from tests.sagemaker.running.jobs import BUCKET, channel
from tests.sagemaker.scripts.contract import digest
from tests.sagemaker.scripts.raw import BUFFER_BYTES, RECORD_BYTES

__all__ = ["IMAGES", "LABELLED", "SCRIPTS", "TFRECORDS", "DataSet", "described"]


@dataclass(frozen=True)
class DataSet:
    """Objects by their key, and of each the hashes of its records."""

    objects: Mapping[str, bytes]
    records: Mapping[str, list[str]]

    @property
    def all_records(self) -> list[str]:
        return sorted(record for records in self.records.values() for record in records)


def _tfrecords() -> DataSet:
    random = Random(1)
    objects, records = {}, {}
    for number in range(12):
        key = f"tfrecords/part {number // 6}/é-{number:02}.tfrecord"
        # The library's buffer has 1 MiB at first.
        sizes = [random.randrange(4096) for _ in range(30)] + [1_500_000] * (number == 7)
        samples = [(random.randbytes(size), random.randrange(1000)) for size in sizes]
        objects[key] = b"".join(
            frame(TFRecordWriter.serialize_tf_example({"image": (image, "byte"), "label": (label, "int")}))
            for image, label in samples
        )
        records[key] = [digest(*sample) for sample in samples]
    return DataSet(objects, records)


def _images() -> DataSet:
    random = Random(2)
    objects, records = {}, {}
    for number in range(80):
        key = f"images/class{number % 5}/{number:03}.npy"
        image = np.frombuffer(random.randbytes(48 * 48 * 3), "uint8").reshape(48, -1, 3)[:, : 20 + number % 28]
        file = io.BytesIO()
        np.save(file, image)
        objects[key] = file.getvalue()
        records[key] = [digest(str(image.shape), image.tobytes())]
    return DataSet(objects, records)


def _tars() -> DataSet:
    """Fewer shards than some jobs have hosts."""
    random = Random(3)
    objects: dict[str, bytes] = {}
    records: dict[str, list[str]] = {}
    for shard in range(5):
        key = f"tars/shard-{shard:06}.tar"
        file = io.BytesIO()
        records[key] = []
        with tarfile.open(fileobj=file, mode="w") as archive:
            for number in range(15):
                name, data, label = f"{shard}{number:04}", random.randbytes(random.randrange(20_000)), b"%d" % number
                for suffix, content in (("bin", data), ("cls", label)):
                    member = tarfile.TarInfo(f"{name}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
                records[key].append(digest(name, data, label))
        objects[key] = file.getvalue()
    return DataSet(objects, records)


def _raw() -> DataSet:
    """Of the objects one is longer than the reader's buffer."""
    random = Random(4)
    objects, records = {}, {}
    for number in range(9):
        key = f"raw/batch_{number}.bin"
        count = BUFFER_BYTES // RECORD_BYTES + 50 if number == 3 else 20 + number
        data = random.randbytes(count * RECORD_BYTES)
        objects[key] = data
        records[key] = [digest(data[at : at + RECORD_BYTES]) for at in range(0, len(data), RECORD_BYTES)]
    return DataSet(objects, records)


def _labelled() -> DataSet:
    """Files of two folders, in the order of the lines."""
    random = Random(5)
    objects, records, lines = {}, {}, []
    for number in range(30):
        key = f"labelled/{'ab'[number * 7 % 2]}/{number * 7 % 30:02}.jpg"
        image = random.randbytes(random.randrange(9000))
        label: str | int = ("a cat", "Katze: ä", 0, 17)[random.randrange(4)]
        objects[key] = image
        records[key] = [digest(image, label)]
        line = {"unused": [1, 2], "label": label, "image-ref": f"s3://{BUCKET}/{key}"}
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    objects["lists/images.manifest"] = "".join(lines).encode()
    return DataSet(objects, records)


TFRECORDS, IMAGES, LABELLED = _tfrecords(), _images(), _labelled()
# The scripts by their name, which is that of their channel, too.
SCRIPTS = {"tfrecords": TFRECORDS, "images": IMAGES, "tars": _tars(), "raw": _raw()} | (
    {"images_torch": IMAGES} if find_spec("torch") else {}
)


def described(script: str, mode: str, key: str = "", kind: str = "S3Prefix", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """The channel of `script`, of which `more` describes the S3DataSource; its whole prefix unless `key` is given."""
    made = channel(script, mode, key or f"{script.removesuffix('_torch')}/")
    made["DataSource"]["S3DataSource"] |= {"S3DataType": kind} | more
    return made
