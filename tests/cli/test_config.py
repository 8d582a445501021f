"""From what the user wrote to frozen settings: every check that needs no network."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.cli.config import (
    channel_mountpoint,
    memory_target_bytes,
    mount_settings,
    parse_listen_address,
    parse_part_size,
)
from fastfuse.cli.index_options import ShardBy, by_channel, origin, parse_duration_s, parse_index_place
from fastfuse.cli.options import connection
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig

MIB = 2**20
GIB = 2**30


class TestMemoryTarget:
    @pytest.mark.parametrize(
        ("available_bytes", "expected_bytes"),
        [(8 * GIB, 2 * GIB), (64 * GIB, 4 * GIB), (2 * GIB, 512 * MIB), (256 * MIB, 128 * MIB)],
    )
    def test_left_out_it_is_a_quarter_of_what_is_there_between_the_minimum_and_4_gib(
        self, available_bytes: int, expected_bytes: int
    ) -> None:
        assert memory_target_bytes(None, available_bytes) == expected_bytes

    @pytest.mark.parametrize(
        ("text", "expected_bytes"),
        [("2GiB", 2 * GIB), ("50%", 4 * GIB), ("12.5 %", GIB), ("100%", 8 * GIB), ("134217728", 128 * MIB)],
    )
    def test_it_is_taken_as_a_size_or_as_a_percentage(self, text: str, expected_bytes: int) -> None:
        assert memory_target_bytes(text, 8 * GIB) == expected_bytes

    @pytest.mark.parametrize("text", ["127MiB", "0%", "1%", "0"])
    def test_less_than_the_minimum_is_refused_and_the_minimum_named(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="less than the minimum of 128 MiB"):
            memory_target_bytes(text, 8 * GIB)

    @pytest.mark.parametrize("text", ["9GiB", "101%", f"{'9' * 20}%"])
    def test_more_than_there_is_is_refused_and_what_there_is_named(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="more than the 8 GiB of this machine"):
            memory_target_bytes(text, 8 * GIB)

    @pytest.mark.parametrize("text", ["", "%", "-5%", "half", "5 % %", "9" * 5000])
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a size"):
            memory_target_bytes(text, 8 * GIB)

    @given(
        st.integers(min_value=0, max_value=1000),
        st.integers(min_value=256 * MIB, max_value=2**42),
    )
    def test_whatever_the_percentage_the_target_fits_or_is_refused(self, permille: int, available_bytes: int) -> None:
        expected_bytes = available_bytes * permille // 1000
        try:
            assert memory_target_bytes(f"{permille / 10}%", available_bytes) == expected_bytes
        except ConfigurationError:
            assert expected_bytes < 128 * MIB
        else:
            assert 128 * MIB <= expected_bytes <= available_bytes


class TestPartSize:
    @pytest.mark.parametrize("text", ["1MiB", "8MiB", "64MiB", "1028KiB"])
    def test_a_multiple_of_4_kib_in_range_is_taken(self, text: str) -> None:
        assert parse_part_size(text, 8 * GIB) % 4096 == 0

    @pytest.mark.parametrize("text", ["1023KiB", "65MiB", "8MB", "1025KiB", "0"])
    def test_anything_else_is_refused_and_the_range_named(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a multiple of 4 KiB from 1 MiB to 64 MiB"):
            parse_part_size(text, 8 * GIB)

    def test_four_parts_must_fit_in_the_memory_target(self) -> None:
        assert parse_part_size("32MiB", 128 * MIB) == 32 * MIB
        with pytest.raises(ConfigurationError, match="too large for a memory target of 128 MiB"):
            parse_part_size("36MiB", 128 * MIB)


class TestIndexOrigin:
    def test_left_out_the_source_is_listed_and_the_listing_kept_in_the_users_cache(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "environ", {"HOME": "/home/u"})
        assert origin() == IndexOrigin(cache=Path("/home/u/.cache/fastfuse/index"))

    @pytest.mark.parametrize(
        ("environ", "cache"),
        [
            ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, Path("/x/fastfuse/index")),
            ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, Path("/h/.cache/fastfuse/index")),
            ({"HOME": "/h", "CACHE_DIRECTORY": "/var/cache/fastfuse"}, Path("/var/cache/fastfuse/index")),
            ({"CACHE_DIRECTORY": "/a:/b"}, Path("/a/index")),
            ({}, None),
        ],
    )
    def test_the_cache_is_where_the_environment_says(
        self, environ: dict[str, str], cache: Path | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "environ", environ)
        assert origin().cache == cache

    def test_no_index_cache_beats_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environ = {"HOME": "/h", "FASTFUSE_INDEX_CACHE": "/c", "FASTFUSE_INDEX_MAX_AGE": "1h"}
        monkeypatch.setattr(os, "environ", environ)
        kept = origin(no_index_cache=True, index_cache=Path("/c"), index_max_age="1h")
        assert kept == IndexOrigin()
        with pytest.raises(ConfigurationError, match="--no-index-cache and --index-cache contradict"):
            origin(no_index_cache=True, index_cache=Path("/d"))

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
        shared = origin(index="s3://b/i", index_max_age="2h", no_index_cache=True)
        assert (shared.saved, shared.max_age_s) == (S3Uri("b", "i"), 7200)
        kept = origin(index_cache=Path("/c"), index_max_age="2h", strict=True, allow_empty=True)
        assert kept == IndexOrigin(cache=Path("/c"), max_age_s=7200, strict=True, allow_empty=True)
        assert origin(no_index_cache=True).cache is None
        assert origin(index="s3://b/k", no_index_cache=True) == IndexOrigin(saved=S3Uri("b", "k"))
        assert origin(index="x.index").saved == Path("x.index").absolute()
        assert origin(inventory="s3://b/manifest.json").inventory == S3Uri("b", "manifest.json")
        assert origin(keys_from=Path("keys")).keys_from == Path("keys").absolute()
        assert origin(shard="1/3", no_index_cache=True) == IndexOrigin(shard=Shard(index=0, count=3))
        assert origin(shard="1/2", shard_by=ShardBy.BYTES).shard == Shard(index=0, count=2, by_bytes=True)
        assert origin(source_type=SourceKind.MANIFEST, index="x").kind is SourceKind.MANIFEST
        lines = origin(source_type=SourceKind.AUGMENTED_MANIFEST, attribute_name=["b", "a-ref"])
        assert lines.attribute_names == ("b", "a-ref")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"index": "x", "inventory": "s3://b/m"}, "--index and --inventory contradict"),
            ({"inventory": "s3://b/m", "keys_from": Path("k")}, "--inventory and --keys-from contradict"),
            ({"keys_from": Path("k"), "index_max_age": "1h"}, "--keys-from and --index-max-age contradict"),
            ({"index": "/i", "index_max_age": "1h"}, "--index and --index-max-age contradict"),
            ({"index": "s3://b/i", "index_max_age": "0s"}, "--index and --index-max-age contradict"),
            ({"no_index_cache": True, "index_max_age": "1h"}, "--no-index-cache and --index-max-age contradict"),
            ({"no_index_cache": True, "index_cache": Path("c")}, "--no-index-cache and --index-cache contradict"),
            ({"index_max_age": "soon"}, "--index-max-age 'soon' is not a time"),
            ({"index": "s3://b/folder/"}, "names no object"),
            ({"inventory": "/file"}, "is not an S3 URI"),
            (
                {"source_type": SourceKind.MANIFEST, "inventory": "s3://b/m"},
                "--inventory and --source-type ManifestFile contradict",
            ),
            (
                {"source_type": SourceKind.AUGMENTED_MANIFEST, "keys_from": Path("k")},
                "--keys-from and --source-type AugmentedManifestFile contradict",
            ),
            ({"attribute_name": ["a"]}, "--attribute-name picks attributes of an augmented manifest"),
            (
                {"attribute_name": ["a", "a"], "source_type": SourceKind.AUGMENTED_MANIFEST},
                "the attribute name 'a' is given twice",
            ),
            ({"shard": "4/3"}, "4/3 is no part of 3"),
            ({"shard_by": ShardBy.COUNT}, "--shard-by says how to divide what --shard divides"),
        ],
    )
    def test_what_cannot_be_right_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            origin(**options)

    @pytest.mark.parametrize(
        ("text", "seconds"), [("90", 90), ("0.5s", 0.5), ("15m", 900), ("12h", 43200), ("7d", 604800), ("0", 0)]
    )
    def test_times_have_units(self, text: str, seconds: float) -> None:
        assert parse_duration_s("--index-max-age", text) == seconds

    @pytest.mark.parametrize("text", ["", "-1", "1w", "1h30m", "inf", "h", "٣s", "1e9"])
    def test_anything_else_is_no_time(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a time"):
            parse_duration_s("--index-max-age", text)

    def test_a_place_is_a_file_or_an_object(self) -> None:
        assert parse_index_place("s3://b/a/x.index") == S3Uri("b", "a/x.index")
        assert parse_index_place("/a/x.index") == Path("/a/x.index")
        with pytest.raises(ConfigurationError, match="names no object"):
            parse_index_place("s3://b")


class TestListenAddress:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("9567", ("127.0.0.1", 9567)),
            (":9567", ("127.0.0.1", 9567)),
            ("0.0.0.0:9567", ("0.0.0.0", 9567)),
            ("node-1.local:1", ("node-1.local", 1)),
            ("[::1]:65535", ("::1", 65535)),
            ("0", ("127.0.0.1", 0)),
        ],
    )
    def test_it_is_on_loopback_unless_a_host_is_given(self, text: str, address: tuple[str, int]) -> None:
        assert parse_listen_address(text) == address

    @pytest.mark.parametrize("text", ["", ":", "localhost", "65536", "h:-1", "http://h:1", "h:1/metrics", "h:٣"])
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="is not an address to listen on"):
            parse_listen_address(text)


class TestChannel:
    @pytest.mark.parametrize("name", ["training", "a", "v1.2_x-y", "x" * 64, "..."])
    def test_a_channel_is_mounted_where_a_training_job_looks_for_it(self, name: str) -> None:
        assert channel_mountpoint(name) == Path("/opt/ml/input/data") / name

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 65, "ä", "a\n"])
    def test_what_cannot_be_a_channel_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a channel name"):
            channel_mountpoint(name)


class TestConnection:
    def test_left_out_everything_is_for_the_aws_files_and_environment_to_say(self) -> None:
        assert connection() == ConnectionConfig()

    def test_a_bundle_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            connection(ca_bundle=tmp_path / "absent.pem")

    def test_a_bundle_is_found_again_after_a_change_of_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "ca.pem").touch()
        monkeypatch.chdir(tmp_path)
        assert connection(ca_bundle=Path("ca.pem")).ca_bundle == str(tmp_path / "ca.pem")

    def test_an_encryption_key_is_read_at_once_and_kept_as_a_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "key").write_bytes(b"k" * 32)
        (tmp_path / "short").write_bytes(b"k" * 31)
        monkeypatch.chdir(tmp_path)
        assert connection(sse_c_key_file=Path("key")).sse_c_key_file == str(tmp_path / "key")
        with pytest.raises(ConfigurationError, match="does not hold an encryption key"):
            connection(sse_c_key_file=Path("short"))

    @pytest.mark.parametrize(
        "url", ["s3.example.com", "ftp://h", "https://", "", "http://h:x", "http://h:0", "http://["]
    )
    def test_an_endpoint_that_is_no_http_url_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="is not an http or https URL"):
            connection(endpoint_url=url)

    @pytest.mark.parametrize("url", ["https://AKID:5ec7e7@h/", "https://h/?token=5ec7e7", "https://h/#5ec7e7"])
    def test_an_endpoint_with_a_secret_in_it_is_refused_without_repeating_it(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            connection(endpoint_url=url)
        assert "5ec7e7" not in f"{caught.value} {caught.value.hint}"

    @pytest.mark.parametrize("region", ["eu-west-1", "us-gov-west-1", "us-isob-east-1", "ap-southeast-4"])
    def test_the_names_of_aws_regions_are_taken(self, region: str) -> None:
        assert connection(region=region).region == region

    @pytest.mark.parametrize("region", ["nonsense", "eu_west_1", "EU-WEST-1", "eu-west", "", "eu-west-1 ", "auto"])
    def test_what_no_aws_region_is_called_is_refused(self, region: str) -> None:
        with pytest.raises(ConfigurationError, match="is not the name of an AWS region"):
            connection(region=region)

    @pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
    def test_another_service_may_call_its_regions_what_it_likes(
        self, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert connection(region="auto", endpoint_url="http://h").region == "auto"
        monkeypatch.setenv(variable, "http://h")
        assert connection(region="auto").region == "auto"

    @pytest.mark.parametrize("region", ["eu west", "h/x", "-a", ""])
    def test_but_it_must_be_a_name(self, region: str) -> None:
        with pytest.raises(ConfigurationError, match="is not the name of a region"):
            connection(region=region, endpoint_url="http://h")


class TestMount:
    def test_left_out_it_is_the_training_channel_of_the_user_who_asks(self) -> None:
        settings = mount_settings(source="s3://b/p", connection=ConnectionConfig())
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
        settings = mount_settings(source="s3://b", mountpoint=Path(mountpoint), connection=ConnectionConfig())
        assert settings.create_parents is created

    def test_a_relative_mountpoint_is_of_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        settings = mount_settings(source="s3://b", mountpoint=Path("x/../data"), connection=ConnectionConfig())
        assert settings.mountpoint == tmp_path / "data"

    @pytest.mark.parametrize("name", ["", "below"])
    def test_it_does_not_cover_what_the_mount_writes_to(self, tmp_path: Path, name: str) -> None:
        within = tmp_path / name
        for option in ("cache", "index_cache"):
            named = f"--{option.replace('_', '-')} '{within}' lies in the mountpoint"
            with pytest.raises(ConfigurationError, match=named):
                mount_settings(source="s3://b", mountpoint=tmp_path, connection=ConnectionConfig(), **{option: within})

    @pytest.mark.parametrize("umask", ["8", "", "rwx", "01777", "-1", "0o22"])
    def test_a_umask_that_is_not_octal_is_refused(self, umask: str) -> None:
        with pytest.raises(ConfigurationError, match="is not an octal mask"):
            mount_settings(source="s3://b", umask=umask, connection=ConnectionConfig())

    @pytest.mark.parametrize("grace_s", [-1.0, float("inf"), float("nan")])
    def test_a_grace_period_that_is_no_time_is_refused(self, grace_s: float) -> None:
        with pytest.raises(ConfigurationError, match="is not a number of seconds"):
            mount_settings(source="s3://b", grace_s=grace_s, connection=ConnectionConfig())
