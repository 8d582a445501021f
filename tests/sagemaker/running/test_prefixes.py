"""A prefix that ends within a name, in real jobs: File and Pipe mode take every key that begins with it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.s3server import LoopbackServer
from tests.sagemaker.prefixes import in_fast_file_mode, matching
from tests.sagemaker.running.jobs import channel, running, script

KEYS = (
    "data/other", "data/train-01.txt", "data/train-01/", "data/train-01/data.csv", "data/train-011/x", "one/only.csv",
    "set/train/", "set/train/a", "set/train/b/c",
)  # fmt: skip
OBJECTS = {key: b"" if key.endswith("/") else f"{key}\n".encode() for key in KEYS}
SIZES = {key: len(data) for key, data in OBJECTS.items()}
PREFIXES = ("data/train-01", "data/train-0", "data/train-01/", "set/train", "set/train/", "one/only.csv", "")

# Prints of each channel the content of each file by its path, or that of the first two epochs.
CONTENTS = """
import json, os
config, found = json.loads(os.environ["SM_INPUT_DATA_CONFIG"]), {}
for name in json.loads(os.environ["SM_CHANNELS"]):
    place = os.environ["SM_CHANNEL_" + name.upper()]
    if config[name]["TrainingInputMode"] == "Pipe":
        found[name] = {epoch: open(f"{place}_{epoch}").read() for epoch in "01"}
    else:
        paths = [os.path.join(top, file) for top, _, files in os.walk(place) for file in files]
        found[name] = {os.path.relpath(path, place): open(path).read() for path in paths}
print(json.dumps(found))
"""


def contents(
    server: LoopbackServer, channels: Sequence[Mapping[str, Any]], *options: str
) -> tuple[dict[str, dict[str, str]], str]:
    """What the command finds in each channel, and the log."""
    with running(server.endpoint_url, channels, *options, command=script(CONTENTS)) as job:
        assert job.wait() == 0, job.log
        found: dict[str, dict[str, str]] = json.loads(job.output)
        return found, job.log


def named(mode: str, prefixes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A channel for each prefix."""
    return {prefix: channel(f"c{at}", mode, prefix) for at, prefix in enumerate(prefixes)}


def test_fast_file_mode_shows_the_folder_and_warns_where_the_other_modes_deliver_more(server: LoopbackServer) -> None:
    channels = named("FastFile", [prefix for prefix in PREFIXES if in_fast_file_mode(KEYS, prefix) is not None])
    assert len(channels) == len(PREFIXES) - 1
    found, log = contents(server, [*channels.values()])
    for prefix, described in channels.items():
        expected = in_fast_file_mode(KEYS, prefix) or []
        assert sorted(found[described["ChannelName"]].values()) == [f"{key}\n" for key in expected if SIZES[key]]
    (warning,) = [line for line in log.splitlines() if "File and Pipe mode take every key" in line]
    assert "s3://bucket/data/train-01 is taken as the folder data/train-01/" in warning
    assert "also s3://bucket/data/train-01.txt, s3://bucket/data/train-011/" in warning


def test_fast_file_mode_refuses_a_prefix_that_is_only_the_beginning_of_names(server: LoopbackServer) -> None:
    with running(server.endpoint_url, [channel("train", "FastFile", "data/train-0")], command=("true",)) as job:
        assert job.wait() != 0
        assert "s3://bucket/data/train-0 is only the beginning of a name" in job.log
        assert "File and Pipe channels take every key that begins with a name" in job.log


def test_hosts_divide_every_key_that_begins_with_the_prefix(server: LoopbackServer) -> None:
    channels = [channel(mode, mode, "data/train-01") for mode in ("File", "Pipe")]
    channels[1]["ShuffleConfig"] = {"Seed": 7}
    for each in channels:
        each["DataSource"]["S3DataSource"]["S3DataDistributionType"] = "ShardedByS3Key"
    keys = [key for key in matching(KEYS, "data/train-01") if SIZES[key]]
    hosts = [contents(server, channels, "--host", f"{host}/2")[0] for host in (1, 2)]
    for host, found in enumerate(hosts):
        assert sorted("".join(found["File"].values()).splitlines()) == keys[host::2]
    # Shuffled, they divide each epoch anew.
    epochs = [[found["Pipe"][epoch].splitlines() for found in hosts] for epoch in "01"]
    assert [sorted(shares[0] + shares[1]) for shares in epochs] == [keys] * 2
    assert sorted(epochs[0][0]) != sorted(epochs[1][0])
