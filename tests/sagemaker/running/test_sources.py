"""What real jobs find of prefixes that end within a name, and of manifests, and how hosts divide it."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tests.sagemaker.running.jobs import BUCKET, Run, channel

FILES = ("data/other", "data/train-01.txt", "data/train-01/data.csv", "data/train-011/x", "one/only.csv", "set/train/a",
         "set/train/b/c")  # fmt: skip
OBJECTS = {"data/train-01/": b"", "set/train/": b""} | {key: f"{key}\n".encode() for key in FILES}
# Neither all, nor in the order of their names.
LISTED = FILES[:0:-1]
LINES = [f'{{"image-ref":"s3://{BUCKET}/{key}","label":{at}}}\n' for at, key in enumerate(LISTED)]
OBJECTS["lists/some"] = json.dumps([{"prefix": f"s3://{BUCKET}/"}, *LISTED]).encode()
OBJECTS["lists/lines"] = "".join(LINES).replace("{", '{"unused":[1,2],').encode()
# Prints of each channel the content of each file by its path, or that of the first two epochs.
CONTENTS = """
import json, os
config, found = json.loads(os.environ["SM_INPUT_DATA_CONFIG"]), {}
for name in json.loads(os.environ["SM_CHANNELS"]):
    place = os.environ["SM_CHANNEL_" + name.upper()]
    if config[name]["TrainingInputMode"] == "Pipe":
        found[name] = {epoch: open(f"{place}_{epoch}", encoding="latin-1", newline="").read() for epoch in "01"}
    else:
        paths = [os.path.join(top, file) for top, _, files in os.walk(place) for file in files]
        found[name] = {os.path.relpath(path, place): open(path).read() for path in paths}
print(json.dumps(found))
"""


def contents(run: Run, channels: Sequence[Mapping[str, Any]], *options: str) -> dict[str, dict[str, str]]:
    """Return what the command finds in each channel."""
    with run(channels, *options, command=CONTENTS, ends_with=0) as job:
        found: dict[str, dict[str, str]] = json.loads(job.output)
        return found


def test_fast_file_mode_refuses_a_prefix_that_is_only_the_beginning_of_names(run: Run) -> None:
    with run([channel("train", "FastFile", "data/train-0")], command=("true",)) as job:
        assert job.wait() != 0
        assert "s3://bucket/data/train-0 is only the beginning of a name" in job.log
        assert "File and Pipe channels take every key that begins with a name" in job.log


def test_hosts_divide_every_key_that_begins_with_the_prefix_and_one_may_be_without_a_share(run: Run) -> None:
    channels = [channel(mode, mode, "data/train-01") for mode in ("File", "Pipe")]
    channels += [channel("fast", "FastFile", "set/train/")]
    for each in channels:
        each["ShuffleConfig"] = {"Seed": 7}
    channels += [channel(f"one{mode}", mode, "one/only.csv") for mode in ("File", "Pipe")]
    channels += [channel("folder", "File", "set/train")]
    for each in channels:
        each["DataSource"]["S3DataSource"]["S3DataDistributionType"] = "ShardedByS3Key"
    keys = sorted(key for key in FILES if key.startswith("data/train-01"))
    hosts = [contents(run, channels, "--host", f"{host}/2") for host in (1, 2)]
    for host, found in enumerate(hosts):
        # Paths are relative to the folder, or else to the last slash.
        assert found["File"] == {key.removeprefix("data/"): f"{key}\n" for key in keys[host::2]}
        folder = {path: f"set/train/{path}\n" for path in ["a", "b/c"][host::2]}
        assert found["folder"] == found["fast"] == folder
    # A shuffled stream is divided anew in each epoch, and only that.
    epochs = [[found["Pipe"][epoch].splitlines() for found in hosts] for epoch in "01"]
    assert [sorted(shares[0] + shares[1]) for shares in epochs] == [keys] * 2
    assert sorted(epochs[0][0]) != sorted(epochs[1][0])
    assert [found["oneFile"] for found in hosts] == [{"only.csv": "one/only.csv\n"}, {}]
    assert [found["onePipe"] for found in hosts] == [dict.fromkeys("01", "one/only.csv\n"), {"0": "", "1": ""}]


def recordio(record: str) -> str:
    return struct.pack("<II", 0xCED7230A, len(record)).decode("latin-1") + record + "\0" * (-len(record) % 4)


def test_hosts_divide_what_manifests_list_in_its_order(run: Run) -> None:
    channels = []
    for mode in ("FastFile", "File", "Pipe"):
        channels += [channel(f"listed{mode}", mode, "lists/some"), channel(f"labelled{mode}", mode, "lists/lines")]
        listed, labelled = (each["DataSource"]["S3DataSource"] for each in channels[-2:])
        listed |= {"S3DataType": "ManifestFile", "S3DataDistributionType": "ShardedByS3Key"}
        labelled |= {"S3DataType": "AugmentedManifestFile", "AttributeNames": ["image-ref", "label"]}
        labelled["S3DataDistributionType"] = "ShardedByS3Key"
    channels[-1]["RecordWrapperType"] = "RecordIO"
    hosts = [contents(run, channels, "--host", f"{host}/2") for host in (1, 2)]
    for host, found in enumerate(hosts):
        of_lines = LISTED[host::2]
        of_list = [key for key in LISTED if key in sorted(LISTED)[host::2]]
        for mode in ("FastFile", "File"):
            files = [*(f"{key}\n" for key in of_lines), "".join(LINES[host::2])]
            assert sorted(found[f"labelled{mode}"].values()) == sorted(files)
            assert sorted(found[f"listed{mode}"].values()) == sorted(f"{key}\n" for key in of_list)
        records = [recordio(f"{key}\n") + recordio(f"{LISTED.index(key)}") for key in of_lines]
        assert found["labelledPipe"] == dict.fromkeys("01", "".join(records))
        assert found["listedPipe"] == dict.fromkeys("01", "".join(f"{key}\n" for key in of_list))
