"""From what the user wrote to frozen settings: every check that needs no network."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastfuse.cli import config
from fastfuse.cli.fstab import expand, helper_arguments
from fastfuse.cli.index_options import ShardBy, by_channel, origin, parse_duration_s
from fastfuse.cli.options import LogFormat, connection, logs
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig

MIB = 2**20
GIB = 2**30


def memory_target(text: str) -> int:
    return config.memory_target_bytes(text, 8 * GIB)


def part_size(text: str) -> int:
    return config.parse_part_size(text, 8 * GIB)


def duration_s(text: str) -> float:
    return parse_duration_s("--index-max-age", text)


def region(name: str) -> str | None:
    return connection(region=name).region


TAKEN: list[tuple[Callable[[str], object], dict[str, object]]] = [
    (memory_target, {"2GiB": 2 * GIB, "50%": 4 * GIB, "12.5 %": GIB, "100%": 8 * GIB, "134217728": 128 * MIB}),
    (part_size, {"1MiB": MIB, "8MiB": 8 * MIB, "64MiB": 64 * MIB, "1028KiB": 1028 << 10}),
    (duration_s, {"90": 90, "0.5s": 0.5, "15m": 900, "12h": 43200, "7d": 604800, "0": 0}),
    (config.parse_listen_address, {"9567": ("127.0.0.1", 9567), ":9567": ("127.0.0.1", 9567), "0": ("127.0.0.1", 0)}),
    (config.parse_listen_address, {"0.0.0.0:9567": ("0.0.0.0", 9567), "node-1.local:1": ("node-1.local", 1)}),
    (config.parse_listen_address, {"[::1]:65535": ("::1", 65535)}),
    (config.channel_mountpoint, {n: Path("/opt/ml/input/data") / n for n in ("training", "v1.2_x-y", "x" * 64, "...")}),
    (region, {name: name for name in ("eu-west-1", "us-gov-west-1", "us-isob-east-1", "ap-southeast-4")}),
]


@pytest.mark.parametrize(("read", "text", "value"), [(read, *item) for read, items in TAKEN for item in items.items()])
def test_a_value_is_taken(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


REFUSED: list[tuple[Callable[[Any], object], str, list[Any]]] = [
    (memory_target, "less than the minimum of 128 MiB", ["127MiB", "0%", "1%", "0"]),
    (memory_target, "more than the 8 GiB of this machine", ["9GiB", "101%", f"{'9' * 20}%"]),
    (memory_target, "is not a size", ["", "%", "-5%", "half", "5 % %", "9" * 5000]),
    (part_size, "is not a multiple of 4 KiB from 1 MiB to 64 MiB", ["1023KiB", "65MiB", "8MB", "1025KiB", "0"]),
    (duration_s, "is not a time", ["", "-1", "1w", "1h30m", "inf", "h", "٣s", "1e9"]),
    (
        config.parse_listen_address,
        "is not an address to listen on",
        ["", ":", "localhost", "65536", "h:-1", "http://h:1", "h:1/metrics", "h:٣"],
    ),
    (config.channel_mountpoint, "is not a channel name", ["", ".", "..", "a/b", "a b", "x" * 65, "ä", "a\n"]),
    (
        lambda url: connection(endpoint_url=url),
        "is not an http or https URL",
        ["s3.example.com", "ftp://h", "https://", "", "http://h:x", "http://h:0", "http://["],
    ),
    (region, "is not the name of a region", ["eu_west_1", "eu west", "h/x", "-a", "", "eu-west-1 "]),
    (lambda umask: mounted(umask=umask), "is not an octal mask", ["8", "", "rwx", "01777", "-1", "0o22"]),
    (lambda grace_s: mounted(grace_s=grace_s), "is not a number of seconds", [-1.0, float("inf"), float("nan")]),
]


@pytest.mark.parametrize(
    ("read", "message", "value"), [(read, message, value) for read, message, values in REFUSED for value in values]
)
def test_anything_else_is_refused(read: Callable[[Any], object], message: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(value)


def mounted(source: str = "s3://b", /, **options: Any) -> MountSettings:  # noqa: ANN401
    return config.mount_settings(source=source, connection=ConnectionConfig(), **options)


@pytest.mark.parametrize(
    ("available_bytes", "expected_bytes"),
    [(8 * GIB, 2 * GIB), (64 * GIB, 4 * GIB), (2 * GIB, 512 * MIB), (256 * MIB, 128 * MIB)],
)
def test_the_memory_target_is_a_quarter_within_bounds(available_bytes: int, expected_bytes: int) -> None:
    assert config.memory_target_bytes(None, available_bytes) == expected_bytes


def test_a_path_is_found_again_after_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").touch()
    Path("key").write_bytes(b"k" * 32)
    made = logs(verbose=True, log_format=LogFormat.JSON, log_file=Path("log"))
    assert made == LogConfig(json=True, verbose=True, file=tmp_path / "log")
    assert connection(ca_bundle=Path("ca.pem")).ca_bundle == str(tmp_path / "ca.pem")
    assert connection(sse_c_key_file=Path("key")).sse_c_key_file == str(tmp_path / "key")
    assert mounted(mountpoint=Path("x/../data")).mountpoint == tmp_path / "data"


def test_four_parts_must_fit_in_the_memory_target() -> None:
    assert config.parse_part_size("32MiB", 128 * MIB) == 32 * MIB
    with pytest.raises(ConfigurationError, match="too large for a memory target of 128 MiB"):
        config.parse_part_size("36MiB", 128 * MIB)


class TestIndexOrigin:
    @pytest.mark.parametrize(
        ("values", "channels", "found"),
        [
            (["x.index"], ["a"], {"a": "x.index"}),
            (["a=x", "b=y=z"], ["a", "b"], {"a": "x", "b": "y=z"}),
            (["s3://b/k=v"], ["a"], {"a": "s3://b/k=v"}),
            (["x"], ["a", "b"], "--index 'x' names no channel"),
            (["c=x"], ["a", "b"], "--index 'c=x' names no channel"),
            (["x"], [], "--index 'x' names no channel"),
            (["x", "a=y"], ["a"], "--index is given twice for the channel a"),
        ],
    )
    def test_an_option_by_channel(self, values: list[str], channels: list[str], found: dict[str, str] | str) -> None:
        if isinstance(found, dict):
            assert by_channel("--index", values, channels) == found
            return
        with pytest.raises(ConfigurationError, match=re.escape(found)):
            by_channel("--index", values, channels)

    def test_each_option_reaches_its_field(self) -> None:
        shared = origin(index="s3://b/i", index_max_age="2h")
        assert (shared.saved, shared.max_age_s) == (S3Uri("b", "i"), 7200)
        own = origin(index="/i", index_max_age="2h", strict=True, allow_empty=True)
        assert own == IndexOrigin(saved=Path("/i"), max_age_s=7200, strict=True, allow_empty=True)
        assert origin(index="s3://b/k") == IndexOrigin(saved=S3Uri("b", "k"))
        assert origin(index="x.index").saved == Path("x.index").absolute()
        assert origin(inventory="s3://b/manifest.json").inventory == S3Uri("b", "manifest.json")
        assert origin(keys_from=Path("keys")).keys_from == Path("keys").absolute()
        assert origin(shard="1/3") == IndexOrigin(shard=Shard(index=0, count=3))
        assert origin(shard="1/2", shard_by=ShardBy.BYTES).shard == Shard(index=0, count=2, by_bytes=True)
        assert origin(source_type=SourceKind.MANIFEST, index="x").kind is SourceKind.MANIFEST
        assert origin(index="s3://b/i", index_max_age="1h", shard="1/2").shard == Shard(index=0, count=2)
        assert origin(index="s3://b/i", index_max_age="1h", source_type=SourceKind.MANIFEST).shard is None
        lines = origin(source_type=SourceKind.AUGMENTED_MANIFEST, attribute_name=["b", "a-ref"])
        assert lines.attribute_names == ("b", "a-ref")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"index": "x", "inventory": "s3://b/m"}, "--index and --inventory contradict"),
            ({"index_max_age": "1h"}, "--index-max-age goes with --index only, and is above 0s"),
            ({"index": "s3://b/i", "index_max_age": "0s"}, "--index-max-age goes with --index only, and is above 0s"),
            (
                {"index": "s3://b/i", "index_max_age": "1h", "shard": "1/2", "source_type": SourceKind.MANIFEST},
                "hosts share one listing at s3://b/i, and each lists only its shard of a ManifestFile",
            ),
            ({"index": "s3://b/folder/"}, "names no object"),
            (
                {"source_type": SourceKind.MANIFEST, "inventory": "s3://b/m"},
                "--inventory and --source-type ManifestFile contradict",
            ),
            ({"attribute_name": ["a"]}, "--attribute-name picks attributes of an augmented manifest"),
            (
                {"attribute_name": ["a", "a"], "source_type": SourceKind.AUGMENTED_MANIFEST},
                "the attribute name 'a' is given twice",
            ),
            ({"shard_by": ShardBy.COUNT}, "--shard-by says how to divide what --shard divides"),
        ],
    )
    def test_what_cannot_be_right_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            origin(**options)


class TestConnection:
    def test_a_bundle_that_is_not_there_and_a_key_that_is_none_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "short").write_bytes(b"k" * 31)
        with pytest.raises(ConfigurationError, match="cannot be read"):
            connection(ca_bundle=tmp_path / "absent.pem")
        with pytest.raises(ConfigurationError, match="does not hold an encryption key"):
            connection(sse_c_key_file=tmp_path / "short")

    @pytest.mark.parametrize("url", ["https://AKID:5ec7e7@h/", "https://h/?token=5ec7e7", "https://h/#5ec7e7"])
    def test_an_endpoint_with_a_secret_in_it_is_refused_without_repeating_it(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            connection(endpoint_url=url)
        assert "5ec7e7" not in f"{caught.value} {caught.value.hint}"


class TestMount:
    def test_left_out_it_is_the_training_channel_of_the_user_who_asks(self) -> None:
        settings = mounted("s3://b/p")
        assert settings.source == S3Uri("b", "p")
        assert settings.mountpoint == Path("/opt/ml/input/data/training")
        assert settings.create_parents
        assert (settings.uid, settings.gid, settings.umask) == (os.getuid(), os.getgid(), 0)
        assert settings.part_size_bytes == 8 * MIB
        assert 128 * MIB <= settings.memory_target_bytes <= 4 * GIB
        assert settings.grace_s == 30.0
        assert settings.metrics_listen is None

    @pytest.mark.parametrize(
        ("mountpoint", "created"),
        [("/mnt/data", False), ("/opt/ml/input/data/x", True), ("/opt/ml/input/data/x/y", False)],
    )
    def test_only_a_channels_own_place_is_made_with_its_parents(self, mountpoint: str, created: bool) -> None:
        assert mounted(mountpoint=Path(mountpoint)).create_parents is created

    @pytest.mark.parametrize("name", ["", "below"])
    def test_it_does_not_cover_what_the_mount_writes_to(self, tmp_path: Path, name: str) -> None:
        within = tmp_path / name
        for option, value in ("cache", within), ("index", str(within)):
            named = f"--{option} '{within}' lies in the mountpoint"
            with pytest.raises(ConfigurationError, match=named):
                mounted(mountpoint=tmp_path, **{option: value})


OWN = {"region": True, "endpoint_url": True, "uid": True, "allow_other": False, "strict": False}


@pytest.mark.parametrize(
    ("words", "expanded"),
    [
        # Own options become long options in place, written with underscores or with hyphens.
        ("s3://b/p /mnt -o uid=1000,allow_other --verbose", "s3://b/p /mnt --uid=1000 --allow-other --verbose"),
        ("-o endpoint_url=https://h:1/a=b", "--endpoint-url=https://h:1/a=b"),
        ("-o endpoint-url=https://h:1/a=b", "--endpoint-url=https://h:1/a=b"),
        # What is for the kernel stays one option each.
        ("-o nodev,noatime,context=a:b", "-o nodev -o noatime -o context=a:b"),
        # What mount adds and what only the boot order needs is left out.
        ("-o rw,dev,suid,_netdev,nofail,user=jo,x-systemd.automount,x-gvfs-show,comment=x,relatime a", "a"),
        ("-o kernel_cache,auto_cache,big_writes,max_read=131072,entry_timeout=1,attr_timeout=1,nosymfollow a", "a"),
        ("-o strict,", "--strict"),
        ("-ostrict", "--strict"),
        ("--mount-option uid=7,nodev --mount-option=strict,ro", "--uid=7 -o nodev --strict"),
        ("--mount-options strict --mount-option= a", "--mount-options strict a"),
        ("-o ,,strict", "--strict"),
        # A comma inside a value is escaped with a backslash.
        (r"-o context=u:c0\,c1,strict", "-o context=u:c0,c1 --strict"),
        ("-o strict -- -o wat", "--strict -- -o wat"),
        # The parser complains about a lone -o.
        ("a -o", "a -o"),
        ("a --mount-option", "a --mount-option"),
    ],
)
def test_options_are_expanded_in_place(words: str, expanded: str) -> None:
    assert expand(words.split(), OWN) == expanded.split()


@pytest.mark.parametrize("name", ["wat", "bind", "help", "region2", "ro2"])
def test_an_option_that_nobody_knows_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^-o {name} is not a mount option"):
        expand(["-o", f"ro,{name}=1"], OWN)


def test_all_options_that_nobody_knows_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"^-o wat, passwd_file are not mount options") as caught:
        expand(["-o", "ro,wat", "-o", "passwd_file=/f,strict"], OWN)
    first, second = caught.value.hint.split("; ")
    assert first == "wat: any long option of 'fastfuse mount --help-all' can be given here"
    assert second.startswith("passwd_file: leave it out: keys come from ")


@pytest.mark.parametrize("option", ["region", "region="])
def test_an_option_without_the_value_that_it_needs_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^-o region needs a value$"):
        expand(["-o", option, "/mnt"], OWN)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("s3://b/p /mnt -o rw", "mount --daemon s3://b/p /mnt -o rw"),
        # mount(8) passes these to its helpers.
        ("s3://b/p /mnt -n -s -v -t fuse.fastfuse -o rw", "mount --daemon s3://b/p /mnt -v -o rw"),
        *((words, words) for words in ("", "version", "mount s3://b/p", "/mnt s3://b/p")),
    ],
)
def test_a_command_line_that_starts_with_a_source_is_a_mount_in_the_background(words: str, command: str) -> None:
    assert helper_arguments(words.split()) == command.split()
