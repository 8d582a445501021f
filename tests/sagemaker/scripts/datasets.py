"""What the scripts read: objects, and the hashes of the records in them, made without the scripts."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from bench.shards import frame
from tests.sagemaker.scripts.contract import digest


@dataclass(frozen=True)
class DataSet:
    """Objects by their key, and the hashes of their records, sorted."""

    objects: Mapping[str, bytes]
    records: list[str]


def _tfrecords() -> DataSet:
    """Return fewer objects than some jobs have hosts."""
    from tfrecord.writer import TFRecordWriter  # loads PyTorch where it is

    random = Random(1)
    objects, records = {}, []
    for number in range(2):
        # The library's buffer has 1 MiB at first.
        sizes = [random.randrange(4096) for _ in range(30)] + [1_500_000] * (number == 1)
        samples = [(random.randbytes(size), random.randrange(1000)) for size in sizes]
        objects[f"tfrecords/part {number}/é-{number:02}.tfrecord"] = b"".join(
            frame(TFRecordWriter.serialize_tf_example({"image": (image, "byte"), "label": (label, "int")}))
            for image, label in samples
        )
        records += [digest(*sample) for sample in samples]
    return DataSet(objects, sorted(records))


def _images() -> DataSet:
    random = Random(2)
    objects, records = {}, []
    for number in range(80):
        image = np.frombuffer(random.randbytes(48 * 48 * 3), "uint8").reshape(48, -1, 3)[:, : 20 + number % 28]
        file = io.BytesIO()
        np.save(file, image)
        objects[f"images/class{number % 5}/{number:03}.npy"] = file.getvalue()
        records.append(digest(str(image.shape), image.tobytes()))
    return DataSet(objects, sorted(records))


@cache
def scripts() -> Mapping[str, DataSet]:
    """Return what each script reads, by its name, which is that of its channel, too."""
    return {"tfrecords": _tfrecords(), "images": _images()}
