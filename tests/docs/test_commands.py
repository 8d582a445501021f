"""Every command block of the pages is run exactly as it is written, here or by ``make readme``."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.docs import fresh
from tests.docs.blocks import COMMANDS, PAGES, Block, blocks_of, split_console
from tests.docs.machine import Machine

pytestmark = pytest.mark.fuse

PARTS = {f"train/part-{number:05d}.tfrecord": str(number) * 1_000_000 for number in range(3)}
TRAINING_SCRIPT = """
import os, pathlib
channels = {name: sorted(os.listdir(os.environ["SM_CHANNEL_" + name.upper()])) for name in ("train", "test")
            if "SM_CHANNEL_" + name.upper() in os.environ}
pathlib.Path("seen").write_text(repr(channels))
"""
JOB = {"InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": {
    "S3DataType": "S3Prefix", "S3Uri": "s3://my-bucket/train/"}}}]}  # fmt: skip


def _nothing(_machine: Machine) -> None:
    pass


@dataclass(frozen=True)
class Section:
    """The blocks below one heading, run in their order, and what they need: objects, files, other commands before."""

    objects: Mapping[str, str] = field(default_factory=lambda: PARTS)
    files: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[Machine], object] = _nothing
    # What each mount in the foreground shows, and what is there after the last block.
    mounted: Mapping[str, list[str]] = field(default_factory=dict)
    after: Callable[[Machine], object] = _nothing


def listed(path: str, *names: str) -> Callable[[Machine], None]:
    def check(machine: Machine) -> None:
        assert machine.run(f"ls {path}").split() == list(names)

    return check


def seen(**channels: list[str]) -> Callable[[Machine], None]:
    def check(machine: Machine) -> None:
        assert (machine.folder / "seen").read_text() == repr(channels)
        assert machine.run("grep -c fuse.fastfuse /proc/mounts || true") == "0\n"

    return check


def mounted_before_a_change(machine: Machine) -> None:
    machine.run("fastfuse mount --daemon s3://my-bucket/train/ /mnt/train")
    machine.fill({**PARTS, "train/part-00003.tfrecord": "3", "train/part-00000.tfrecord": "another one"})


def line_in_fstab(machine: Machine) -> None:
    [line] = [block.text for block in blocks_of("docs/USAGE.md") if block.language == "fstab"]
    machine.run(f"cat >> /etc/fstab << 'END'\n{line}END")


# The pages of which every command is run; those of the others take a quiet machine and a quarter of an hour.
FOLLOWED = ("README.md", "docs/USAGE.md")
NAMES = [key.removeprefix("train/") for key in PARTS]
TRAINING = {"train.py": TRAINING_SCRIPT, "job.json": json.dumps(JOB)}
EFS = {"FileSystemId": "fs-0123456789abcdef0", "FileSystemAccessMode": "ro", "FileSystemType": "EFS"}
EFS_SOURCE = {"FileSystemDataSource": EFS | {"DirectoryPath": "/test"}}
EFS_JOB = {"InputDataConfig": [{"ChannelName": "test", "DataSource": EFS_SOURCE}]}
SECTIONS = {
    ("README.md", "fastfuse"): Section(mounted={"/mnt/train": NAMES}),
    ("README.md", "Mount a bucket"): Section(),
    ("README.md", "Run a training job"): Section(files=TRAINING, after=seen(train=NAMES)),
    ("docs/USAGE.md", "Mount"): Section(mounted={"/mnt/train": NAMES, "/opt/ml/input/data/train": NAMES}),
    ("docs/USAGE.md", "Another service than AWS"): Section(after=listed("/mnt/train", *NAMES)),
    ("docs/USAGE.md", "List once, mount often"): Section(after=listed("/mnt/train", *NAMES)),
    ("docs/USAGE.md", "Manifests"): Section(
        objects={
            "train.manifest": '[{"prefix": "s3://my-bucket/train/"}, "a/1", "a/2"]', "train/a/1": "1", "train/a/2": "2",
            "images.jsonl": '{"source-ref": "s3://my-bucket/1.jpg", "class": 0, "more": 1}', "1.jpg": "image",
        },
        after=lambda machine: (
            listed("/mnt/train/train/a", "1", "2")(machine),
            listed("/mnt/images", "1.jpg", "images.jsonl")(machine),
        ),
    ),
    ("docs/USAGE.md", "Shards"): Section(after=listed("/mnt/train", NAMES[0])),
    ("docs/USAGE.md", "Refresh"): Section(
        before=mounted_before_a_change, after=listed("/mnt/train", *NAMES, "part-00003.tfrecord")
    ),
    ("docs/USAGE.md", "Announce an order"): Section(
        objects={f"train/{number}.jpg": "image" for number in range(20)},
        before=lambda machine: machine.run("fastfuse mount --daemon s3://my-bucket/train/ /mnt/train"),
    ),
    ("docs/USAGE.md", "Choose a mode"): Section(),
    ("docs/USAGE.md", "In fstab"): Section(before=line_in_fstab, after=listed("/mnt/train", *NAMES)),
    ("docs/USAGE.md", "Run a training job"): Section(
        objects={**PARTS, "test/images.rec": "records"}, files=TRAINING,
        after=seen(train=NAMES, test=["images.rec"]),
    ),
    ("docs/USAGE.md", "Data in a file system"): Section(
        objects={}, files=TRAINING | {"job.json": json.dumps(EFS_JOB)},
        before=lambda machine: machine.run("mkdir -p /mnt/{nvme/train,efs/test}; touch /mnt/{nvme/train/1,efs/test/2}"),
        after=seen(test=["2"]),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture
def machine(shared_machine: Machine) -> Iterator[Machine]:
    yield shared_machine
    shared_machine.clean()


def blocks_below(page: str, heading: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.heading == heading and block.language in COMMANDS]


def comparable(text: str) -> str:
    """What a session prints, without numbers, times and widths, and without a warning of machines without syslog."""
    lines = [line for line in text.splitlines() if "there is no syslog here" not in line]
    return re.sub(r" +", " ", re.sub(r"(?<![a-z])\d[\w.,:+-]*", "N", "\n".join(line.strip() for line in lines))).strip()


MOUNTS = "awk '$3 == \"fuse.fastfuse\" { print $2 }' /proc/mounts"


@pytest.mark.parametrize(("page", "heading"), SECTIONS)
def test_a_section_does_what_it_says(machine: Machine, page: str, heading: str) -> None:
    section = SECTIONS[page, heading]
    machine.fill(section.objects)
    for name, text in section.files.items():
        (machine.folder / name).write_text(text)
    section.before(machine)
    shown: dict[str, list[str]] = {}
    others = set(machine.run(MOUNTS).split())

    def look() -> None:
        [path] = set(machine.run(MOUNTS).split()) - others
        shown[path] = machine.run(f"ls {path}").split()

    for block in blocks_below(page, heading):
        commands, expected = split_console(block.text) if block.language == "console" else (block.text, None)
        printed = machine.run(commands, when_mounted=look)
        assert expected is None or comparable(printed) == comparable(expected), printed
    assert shown == section.mounted
    section.after(machine)


def test_every_command_block_is_run_by_somebody() -> None:
    told = {(block.page, block.heading) for page in FOLLOWED for block in blocks_of(page) if block.language in COMMANDS}
    assert told == SECTIONS.keys() | fresh.SECTIONS.keys()
    assert not SECTIONS.keys() & fresh.SECTIONS.keys()


def test_every_block_has_a_language() -> None:
    assert {block.language for page in PAGES for block in blocks_of(page)} <= {*COMMANDS, "python", "fstab", "text"}
