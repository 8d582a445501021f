"""The command line: what it passes on, what it refuses, and how it says so."""

import json
import logging
import os
import re
import select
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer
from typer.core import TyperArgument
from typer.testing import CliRunner

from fastfuse import __version__
from fastfuse.cli.help_pages import PAGES
from fastfuse.cli.main import app, main
from fastfuse.errors import AccessError, EmptySourceError, FastfuseError, MountError, ServiceError
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig

# Each gives a relative path.
RELATIVE = (
    *("mount s3://b m", "mount s3://b /m --log-file log", "mount s3://b /m --cache c", "mount s3://b /m --ca-bundle f"),
    *("mount s3://b /m --sse-c-key-file key", "mount s3://b /m --index i"),
    *("mount s3://b /m --keys-from k", "mount s3://b --fuse-socket s", "run --channel a=s3://b --base-dir d -- true"),
    *("run --job job.json -- true", "run --channel a=s3://b --index i -- true", "index s3://b -o i", "status m"),
    *("stats m", "top m", "trace m", "refresh m", "unmount m", "log-level m", "hint m", "hint /m --file f"),
    *("fuse-helper m --socket s --user 1", "fuse-helper /m --socket s --user 1", "report m", "warm m"),
    *("warm s3://b --cache c", "cache status --cache c"),
)

GROUP = typer.main.get_group(app)
COMMANDS = list(GROUP.commands)


@pytest.fixture(autouse=True)
def _process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("AWS_REGION", "NOTIFY_SOCKET"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    # To make the options of all commands takes longer than most tests.
    monkeypatch.setattr(typer.main, "get_group", lambda _: GROUP)
    root, own = logging.getLogger(), logging.getLogger("fastfuse")
    handlers, level, own_level = root.handlers[:], root.level, own.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)
    own.setLevel(own_level)


class Mounts:
    """Stands in for the supervisor: keeps the settings of each mount, and ends as it is told to."""

    def __init__(self) -> None:
        self.settings: list[MountSettings] = []
        self.outcome: int | FastfuseError = 0

    def run(self, settings: MountSettings, *, ready: Callable[[], None] | None = None) -> int:
        self.settings.append(settings)
        if isinstance(self.outcome, FastfuseError):
            raise self.outcome
        return self.outcome


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    package, _, attribute = name.rpartition(".")
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules[package], attribute, module, raising=False)


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    mounts = Mounts()
    stand_in(monkeypatch, "fastfuse.filesystem.supervisor", run=mounts.run)
    return mounts


def mounted(mounts: Mounts, *words: str) -> MountSettings:
    assert main(["mount", *words]) == 0
    return mounts.settings[-1]


class TestMount:
    def test_the_bytes_of_a_source_are_utf8_in_every_locale_and_those_of_a_path_stay(
        self, mounts: Mounts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        word = "caf\udcc3\udca9"  # as Python decodes it where the locale is ASCII
        settings = mounted(mounts, f"s3://b/{word}", f"/mnt/{word}", "--inventory", f"s3://i/{word}/manifest.json")
        assert (settings.source, settings.mountpoint) == (S3Uri("b", "café"), Path(f"/mnt/{word}"))
        assert settings.origin.inventory == S3Uri("i", "café/manifest.json")
        monkeypatch.setenv("FASTFUSE_SOURCE", f"s3://b/{word}")
        monkeypatch.setenv("FASTFUSE_MOUNTPOINT", "/m")
        assert mounted(mounts).source == S3Uri("b", "café")

    def test_the_socket_of_a_helper_is_found_again_after_a_change_of_directory(
        self, mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert mounted(mounts, "s3://b", "--fuse-socket", "socket", "-onodev").fuse_socket == tmp_path / "socket"

    def test_every_option_reaches_the_settings(self, mounts: Mounts) -> None:
        words = "--endpoint-url http://h:1 --region r1 --profile p --force-path-style --no-verify-ssl --request-payer"
        words += " --verify --max-connections 9 --uid 1 --gid 2 --umask 022 --allow-other --memory-target 256MiB"
        words += " --part-size 1MiB --training --strict --allow-empty --index /i --channel eval"
        words += " --index-max-age 1.5h --grace-s 2.5 --metrics-listen 9567 -o nodev"
        settings = mounted(mounts, "s3://b", *words.split())
        assert settings.connection == ConnectionConfig(
            endpoint_url="http://h:1", region="r1", profile="p", force_path_style=True, verify_ssl=False,
            request_payer=True, verify=True, max_connections=9,
        )  # fmt: skip
        assert (settings.uid, settings.gid, settings.umask, settings.allow_other) == (1, 2, 0o022, True)
        assert (settings.memory_target_bytes, settings.part_size_bytes) == (256 * 2**20, 2**20)
        assert (settings.expects_whole_files, settings.expects_every_file) == (True, True)
        assert settings.origin == IndexOrigin(saved=Path("/i"), max_age_s=5400, strict=True, allow_empty=True)
        assert (settings.grace_s, settings.metrics_listen) == (2.5, ("127.0.0.1", 9567))
        assert (settings.mount_options, settings.mountpoint) == (("nodev",), Path("/opt/ml/input/data/eval"))

    def test_each_option_of_the_source_has_its_variable(self, mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
        options = ["--source-type", "AugmentedManifestFile", "--shard", "1/2", "--attribute-name", "b"]
        shown = 'AugmentedManifestFile "b" "a b" part 1/2 by count'
        assert mounted(mounts, "s3://b", *options, "--attribute-name", "a b").origin.view == shown
        monkeypatch.setenv("FASTFUSE_SOURCE_TYPE", "AugmentedManifestFile")
        monkeypatch.setenv("FASTFUSE_ATTRIBUTE_NAME", "source-ref class")
        monkeypatch.setenv("FASTFUSE_SHARD", "1/2")
        monkeypatch.setenv("FASTFUSE_SHARD_BY", "bytes")
        shown = 'AugmentedManifestFile "source-ref" "class" part 1/2 by bytes'
        assert mounted(mounts, "s3://b").origin.view == shown

    def test_fstab_options_are_the_long_options(self, mounts: Mounts) -> None:
        options = "rw,noatime,_netdev,allow_other,uid=7,region=eu-west-1,memory-target=128MiB,no_sign_request"
        settings = mounted(mounts, "s3://b", "/m", "-o", options)
        assert settings.mount_options == ("noatime",)
        assert (settings.allow_other, settings.uid, settings.memory_target_bytes) == (True, 7, 128 * 2**20)
        assert settings.connection == ConnectionConfig(region="eu-west-1", sign_request=False)

    def test_the_environment_sets_what_is_left_out(self, mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FASTFUSE_SOURCE", "s3://from/env")
        monkeypatch.setenv("FASTFUSE_MOUNTPOINT", "/mnt/env")
        monkeypatch.setenv("FASTFUSE_ALLOW_OTHER", "true")
        monkeypatch.setenv("FASTFUSE_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_REGION", "eu-west-2")
        monkeypatch.setenv("FASTFUSE_PROFILE", "")
        monkeypatch.setenv("NOTIFY_SOCKET", "/run/manager")
        settings = mounted(mounts)
        assert (settings.source, settings.mountpoint) == (S3Uri("from", "env"), Path("/mnt/env"))
        assert settings.allow_other
        assert settings.connection == ConnectionConfig(region="eu-west-1")
        assert settings.notify_socket == "/run/manager"
        assert mounted(mounts, "-o", "region=us-east-1").connection.region == "us-east-1"
        monkeypatch.delenv("FASTFUSE_REGION")
        assert mounted(mounts).connection.region == "eu-west-2"  # which containers are given

    @pytest.mark.parametrize(
        ("kind", "exit_code"), [(ServiceError, 1), (AccessError, 3), (EmptySourceError, 4), (MountError, 5)]
    )
    def test_an_error_is_one_sentence_and_its_exit_code(
        self, mounts: Mounts, capsys: pytest.CaptureFixture[str], kind: type[FastfuseError], exit_code: int
    ) -> None:
        mounts.outcome = kind("it does not answer")
        assert main(["mount", "s3://b"]) == exit_code
        assert capsys.readouterr() == ("", "fastfuse: error: it does not answer\n")
        mounts.outcome = exit_code  # as the supervisor ends by itself
        assert main(["mount", "s3://b"]) == exit_code

    @pytest.mark.parametrize("words", [["--log-format", "json"], ["--log-format=json"], ["-o", "log_format=json"]])
    def test_an_error_is_one_json_line_where_that_is_asked_for(
        self, mounts: Mounts, capsys: pytest.CaptureFixture[str], words: list[str]
    ) -> None:
        mounts.outcome = AccessError("access denied", hint="check the policy")
        main(["mount", "s3://b", *words])
        [line] = capsys.readouterr().err.splitlines()
        fields = json.loads(line)
        assert (fields["message"], fields["hint"], fields["exit_code"]) == ("access denied", "check the policy", 3)


Refusal = Callable[..., str]


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Return what is said of a command line that is refused."""

    def refused(*words: str) -> str:
        assert main(words) == 2
        output = capsys.readouterr()
        assert output.out == ""
        return output.err

    return refused


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ("mount", "Missing argument 'S3_URI'."),
            ("mount /data", "'/data' is not an S3 URI"),
            ("mount s3://b --uid=-1", "Invalid value for '--uid'"),
            ("fuse-helper m --socket /nonexistent/s --user 4294967295", "Invalid value for '--user'"),
            ("mount s3://b --max-connections 1025", "Invalid value for '--max-connections'"),
            ("mount s3://b -o remount,ro", "-o remount: a mount keeps the options that it was made with"),
            ("mount s3://b -o mount_option=x", "-o mount_option is not a mount option that fastfuse knows"),
            ("mount s3://b /m --fuse-socket s", "--fuse-socket leaves the place to the helper"),
            ("mount s3://b --fuse-socket s --fuse-fd 7", "--fuse-socket leaves the place to the helper"),
            ("mount s3://b --fuse-socket s -o nodev,noexec", "-o noexec is for a mount that this process makes"),
            ("mount s3://b /m --fuse-fd 3 -o context=x", "-o context=x is for a mount that this process makes"),
            ("deploy kubernetes s3://b --daemonset -o noexec", "-o noexec is for a mount that this process makes"),
            ("mount s3://b --cache /tmp/c --index /tmp/c/i", "--index '/tmp/c/i' lies in the directory of --cache"),
            ("warm s3://b --cache /tmp/c --index /tmp/c/i", "--index '/tmp/c/i' lies in the directory of --cache"),
            (
                "run --channel a=s3://b/ --cache /tmp/c --index /tmp/c/i --base-dir /dev/null/ml -- true",
                "--index '/tmp/c/i' lies in the directory of --cache",
            ),
            ("mount s3://b -o strict=1", "Option '--strict' does not take a value."),
            ("mount s3://b --log-format xml", "Invalid value for '--log-format'"),
            (
                "run --channel a=s3://b/m,type=manifest,distribution=sharded --host 1/2 --index s3://b/i "
                "--index-max-age 1h --base-dir /dev/null/ml -- true",
                "hosts share one listing at s3://b/i, and each lists only its shard of a ManifestFile",
            ),
            ("mount s3://b /m --channel c", "MOUNTPOINT and --channel contradict each other"),
            ("mount s3://b /m /n", "Got unexpected extra argument"),
            ("mount s3://b --no-sign-request --profile p", "--no-sign-request and --profile contradict each other"),
            ("mount s3://b --no-verify-ssl --ca-bundle f", "--no-verify-ssl and --ca-bundle contradict each other"),
            ("mount s3://b --nonsense", "No such option: --nonsense"),
            ("s3://b/p /m -o ro,uid=x", "Invalid value for '--uid'"),
            ("index s3://b --json", "--json says how to print the summary"),
            ("index s3://b", "index has nothing to do"),
            ("index s3://b/p -o s3://b/p/i", "--output s3://b/p/i lies in the source s3://b/p"),
            ("advise bucket", "'bucket' is not an S3 URI"),
            ("advise s3://b --disk-rate fast", "--disk-rate 'fast' is not a size"),
            ("advise s3://b --hours inf", "Invalid value for '--hours'"),
            ("unmount", "unmount takes one of MOUNTPOINT, --all and --all-users"),
            ("unmount /m --all", "unmount takes one of MOUNTPOINT, --all and --all-users"),
            ("demo --shard-size big", "--shard-size 'big' is not a size"),
            ("deploy", "Missing argument 'WHAT'. Choose from: kubernetes, grafana, prometheus"),
            ("cache show", "Invalid value for 'ACTION': 'show' is not one of 'status', 'verify', 'clear', "),
            ("mount s3://bucket/\udcff", "'s3://bucket/\\udcff' is not UTF-8"),
            ("stats /m --summary --count 3", "--interval and --count are for lines, and the summary is printed once"),
            ("stats /m --json --interval 2", "--interval and --count are for lines, and the summary is printed once"),
            ("cache status", "cache status has no directory"),
            ("cache pin --cache /tmp/c", "pin needs the S3_URI of objects"),
            ("cache clear s3://b --cache /tmp/c", "cache clear takes no S3_URI"),
            ("warm s3://b", "warm has no place for what it fetches"),
            ("warm s3://b --cache /tmp/c --limit 0MB/s", "--limit 0MB/s lets nothing through"),
            ("deploy grafana --job", "grafana takes no --job"),
            ("deploy kubernetes --job", "kubernetes takes an S3_URI"),
            ("deploy kubernetes s3://b --daemonset --memory-target 1MiB", "--memory-target 1MiB is less than 128 MiB"),
            (
                "run --channel a=s3://b/f,mode=File --inventory a=s3://b/m.json --base-dir /dev/null/ml -- true",
                "--inventory takes folders, and channel a takes every key that begins with s3://b/f",
            ),
            ("nonsense", "No such command 'nonsense'."),
        ],
    )
    def test_a_mistake_is_told_with_a_hint(self, mounts: Mounts, refusal: Refusal, words: str, sentence: str) -> None:
        error, hint = refusal(*words.split()).splitlines()
        assert error.startswith(f"fastfuse: error: {sentence}")
        assert hint.startswith("hint: ")
        assert not mounts.settings

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("mount s3://b /m --prefix p/", "No such option: --prefix\nhint: the prefix is part of the source: "),
            (
                "mount s3://b --dir-cache-time=5m",
                "No such option: --dir-cache-time\nhint: leave it out: a mount shows ",
            ),
            ("mount s3://b /m -f", "No such option: -f\nhint: leave it out: 'fastfuse mount' stays in the foreground "),
            # The form of mount(8), which s3fs and goofys have, too; their -f is another one.
            ("s3://b /m -f -o ro", "No such option: -f\nhint: leave it out: 'fastfuse mount' stays in the foreground "),
            ("s3://b /m -o use_cache=/c", "-o use_cache is not a mount option that fastfuse knows\nhint: --cache DIR "),
            ("mount s3://b /m --io=a", "No such option: --io\nhint: leave it out: files are read through the page "),
            ("mount s3://b /m --allow-delete", "No such option: --allow-delete\nhint: leave it out: every write "),
            ("mount s3://b /m --max-threads 8", "No such option: --max-threads\nhint: --max-connections N "),
            # What other commands lack has nothing to do with a mount's options.
            ("unmount /m -f", "No such option: -f\nhint: see 'fastfuse unmount --help'\n"),
        ],
    )
    def test_an_option_of_another_program_is_told_with_what_takes_its_place(
        self, refusal: Refusal, words: str, said: str
    ) -> None:
        assert refusal(*words.split()).startswith(f"fastfuse: error: {said}")

    @pytest.mark.parametrize(
        ("variable", "value", "reason", "hint"),
        [
            ("MEMORY_TARGET", "lots", "is not a size", "write it as 8MiB, 2GiB or a number of bytes"),
            (
                *("LOG_FILE", "/nonexistent/log", "cannot be written: No such file or directory"),
                "name a file in a directory that exists and is writable",
            ),
        ],
    )
    def test_a_mistake_in_the_environment_names_the_variable_and_one_of_the_command_line_does_not(
        self, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str, hint: str
    ) -> None:
        option = f"--{variable.replace('_', '-').lower()}"
        monkeypatch.setenv(f"FASTFUSE_{variable}", value)
        said = f"fastfuse: error: {option} {value!r} {reason}\nhint: {hint}"
        assert refusal("mount", "s3://b") == f"{said}; FASTFUSE_{variable} gives {option}\n"
        monkeypatch.setenv(f"FASTFUSE_{variable}", "/")
        assert refusal("mount", "s3://b", option, value) == f"{said}\n"

    @pytest.mark.parametrize("words", [["index", "s3://b", "-o", "/i"], ["warm", "/m"]])
    def test_an_index_of_the_environment_that_is_in_the_way_is_named(
        self, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, words: list[str]
    ) -> None:
        monkeypatch.setenv("FASTFUSE_INDEX", "/i")
        assert refusal(*words).endswith("out; FASTFUSE_INDEX gives --index\n")

    @pytest.mark.parametrize(
        ("variable", "value", "end"),
        [
            ("FASTFUSE_MAX_CONNECTIONS", "0", "\n"),
            ("FASTFUSE_STRICT", "maybe", "\n"),
            ("FASTFUSE_SOURCE", "http://x", "; FASTFUSE_SOURCE gives SOURCE\n"),
        ],
    )
    def test_a_variable_whose_value_is_refused_is_named_once(
        self, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, end: str
    ) -> None:
        monkeypatch.setenv("FASTFUSE_SOURCE", "s3://b")
        monkeypatch.setenv(variable, value)
        said = refusal("mount")
        assert said.count(variable) == 1
        assert said.endswith(end)

    def test_a_variable_that_nothing_reads_is_told_with_the_nearest_one(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("FASTFUSE_ENDPOINTURL", "http://h")
        monkeypatch.setenv("FASTFUSE_OF_MY_OWN", "1")
        monkeypatch.setenv("FASTFUSE_NO_INDEX_CACHE", "of the past")
        monkeypatch.setenv("FASTFUSE_JOB", "of another command")
        for name in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP_ADDR"):  # Kubernetes sets them
            monkeypatch.setenv(f"FASTFUSE_{name}", "tcp://10.0.0.1:80")
        assert main(["version"]) == 0
        assert capsys.readouterr().err.splitlines() == [
            "fastfuse: warning: the environment has FASTFUSE_ENDPOINTURL, which fastfuse does not read",
            "hint: did you mean FASTFUSE_ENDPOINT_URL?",
            "fastfuse: warning: the environment has FASTFUSE_NO_INDEX_CACHE, which fastfuse does not read",
            "hint: no listing is kept unless --index FILE --index-max-age TIME says where and for how long",
            "fastfuse: warning: the environment has FASTFUSE_OF_MY_OWN, which fastfuse does not read",
            "hint: 'fastfuse mount --help-all' shows which it does; unset it",
        ]

    def test_a_job_is_told_of_variables_that_only_other_commands_read(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("FASTFUSE_KEYS_FROM", "/keys")
        monkeypatch.setenv("FASTFUSE_REGION", "eu-west-1")
        warning = "fastfuse: warning: the environment has FASTFUSE_KEYS_FROM, which fastfuse run does not read"
        assert main(["run", "--channel", "a=s3://b/", "--explain"]) == 0
        assert capsys.readouterr().err.splitlines() == [warning, "hint: other commands do; unset it for this one"]
        assert main(["version"]) == 0
        assert not capsys.readouterr().err

    def test_an_age_is_for_the_channels_of_a_job_that_have_an_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Mock(return_value=0)
        monkeypatch.setattr("fastfuse.sagemaker.running.run.run", run)
        words = ["run", "--index-max-age", "12h", "--channel", "a=s3://b/", "--index", "a=/x.index"]
        more = ["--channel", "b=s3://b/", "--channel", "c=s3://b/", "--inventory", "c=s3://b/manifest.json"]
        assert main([*words, *more, "--channel", "d=s3://b/", "--index", "d=s3://b/d.index"]) == 0
        assert {name: origin.max_age_s for name, origin in run.call_args.args[0].origins.items()} == {
            "a": 43_200, "b": None, "c": None, "d": 43_200
        }  # fmt: skip
        assert main(words[:-2]) == 2

    @pytest.mark.parametrize("option", ["--daemon", "--mount-option", "--file-system", "--count", "--version"])
    def test_a_variable_that_is_called_as_an_option_without_one_is_told_with_the_option(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
    ) -> None:
        monkeypatch.setenv("FASTFUSE_" + option.removeprefix("--").replace("-", "_").upper(), "1")
        assert main(["version"]) == 0
        assert capsys.readouterr().err.endswith(f"\nhint: {option} has no variable: give it on the command line\n")

    @pytest.mark.parametrize("words", RELATIVE)
    def test_a_relative_path_in_a_deleted_directory_is_one_sentence(
        self,
        mounts: Mounts,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        words: str,
    ) -> None:
        place = tmp_path / "gone"
        place.mkdir()
        monkeypatch.chdir(place)
        place.rmdir()
        assert main(words.split()) == 2
        assert re.fullmatch(r"fastfuse: error: .*\n(hint: .*\n)?", capsys.readouterr().err)
        assert not mounts.settings

    def test_a_request_to_write_is_told_to_be_in_vain(self, mounts: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["mount", "s3://b", "/m", "-o", "rw,nodev"]) == 0
        assert capsys.readouterr().err.startswith("fastfuse: warning: -o rw does not make the mount writable\nhint: ")
        assert main(["mount", "s3://b", "/m", "-o", "rw,nodev", "-oro"]) == 0
        assert capsys.readouterr().err == ""

    def test_a_mistake_is_json_as_the_environment_says(self, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FASTFUSE_LOG_FORMAT", "json")
        assert json.loads(refusal("mount", "s3://b", "--nonsense"))["exit_code"] == 2
        assert refusal("mount", "s3://b", "--nonsense", "--log-format", "human").startswith("fastfuse: error: ")


# The mountpoints that are taken away, and whether that is lazy.
Calls = list[tuple[Path, bool]]


class TestUnmount:
    @pytest.fixture
    def busy(self) -> set[Path]:
        return set()

    @pytest.fixture
    def places(self) -> list[Path]:
        return [Path("/mnt/a"), Path("/mnt/b")]

    @pytest.fixture
    def unmounted(self, monkeypatch: pytest.MonkeyPatch, busy: set[Path], places: list[Path]) -> Calls:
        calls: Calls = []

        def unmount(path: Path, *, lazy: bool = False) -> list[Path]:
            if path in busy:
                raise MountError(f"{path} cannot be unmounted: Device or resource busy", hint="close its files")
            calls.append((path, lazy))
            if path in places:
                places[:] = (place for place in places if place != path)
            return []

        def fastfuse_mounts(uid: int | None) -> list[Path]:
            return [*places, *([Path("/mnt/theirs")] if uid is None else [])]

        stand_in(
            monkeypatch, "fastfuse.filesystem.mounting.mountpoint", unmount=unmount, fastfuse_mounts=fastfuse_mounts
        )
        return calls

    def test_one_mount_is_taken_away(self, unmounted: Calls) -> None:
        assert main(["unmount", "/mnt/x/../a"]) == 0
        assert unmounted == [(Path("/mnt/a"), False)]

    def test_all_mounts_of_the_user_are_taken_away(self, unmounted: Calls, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["unmount", "--all", "--lazy"]) == 0
        assert unmounted == [(Path("/mnt/a"), True), (Path("/mnt/b"), True)]
        assert capsys.readouterr().out == "unmounted /mnt/a\nunmounted /mnt/b\n"

    def test_a_place_that_went_with_another_is_no_error(self, unmounted: Calls, places: list[Path]) -> None:
        places.insert(1, Path("/mnt/a"))  # a shared mount that is bound onto itself shows each below it twice
        assert main(["unmount", "--all"]) == 0
        assert unmounted == [(Path("/mnt/a"), False), (Path("/mnt/b"), False)]

    def test_a_busy_mount_keeps_no_other(
        self, unmounted: Calls, busy: set[Path], places: list[Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        busy.add(Path("/mnt/a"))
        assert main(["unmount", "--all"]) == 5
        assert unmounted == [(Path("/mnt/b"), False)]
        out, err = capsys.readouterr()
        assert out == "unmounted /mnt/b\n"
        assert "/mnt/a cannot be unmounted: Device or resource busy\nhint: close its files" in err
        busy.add(Path("/mnt/b"))
        places.append(Path("/mnt/b"))
        assert main(["unmount", "--all"]) == 5
        assert "/mnt/a cannot be unmounted: Device or resource busy; /mnt/b cannot be" in capsys.readouterr().err

    def test_those_of_all_users_are_taken_away_by_root(self, unmounted: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert main(["unmount", "--all-users"]) == 2
        assert not unmounted
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert main(["unmount", "--all-users"]) == 0
        assert unmounted == [(Path("/mnt/a"), False), (Path("/mnt/b"), False), (Path("/mnt/theirs"), False)]


# Modules that take long to load, each with a command that loads it.
LATE_MODULES = (
    *[("cli.status_command", f"{command} /nowhere") for command in ("status", "stats", "trace", "log-level")],
    *[("cli.top_command", command) for command in ("top", "report --json")],
    *[("cli.source_output", f"{command} s3://bucket") for command in ("index --summary", "advise")],
    *[("cli.cache_work", f"{command} --cache /tmp") for command in ("cache status", "warm s3://bucket")],
    ("demo", "demo --shards 1 --shard-size 1KiB --small-files 0"),
    ("report.records", "report --json"),
    ("doctor.steps", "doctor s3://bucket"),
)


def interpreted(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=60)


@contextmanager
def unwritable(kind: str) -> Iterator[int]:
    """A descriptor to which nothing can be written."""
    if kind == "full device":
        ends = [os.open("/dev/full", os.O_WRONLY)]
    else:
        ends = [*(os.pipe() if kind == "pipe without a reader" else os.openpty())]
    fd = ends[-1]
    if kind == "terminal that nobody reads":
        os.set_blocking(fd, False)
        while select.select([], [fd], [], 0.1)[1]:  # the kernel moves some on, and so makes room
            with suppress(BlockingIOError):
                os.write(fd, b"x" * 1000)
        os.set_blocking(fd, True)
    elif len(ends) > 1:
        os.close(ends.pop(0))
    try:
        yield fd
    finally:
        for end in ends:
            os.close(end)


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_mentions_every_option_and_its_variable_and_every_choice(self, command: str) -> None:
        output = CliRunner().invoke(app, [command, "--help-all"]).output
        for parameter in GROUP.commands[command].params:
            variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
            for word in [*(name for name in parameter.opts if name.startswith("-")), *variables]:
                assert re.search(rf"(?<![\w-]){word}(?![\w-])", output), word
            # The values of an option are shown by typer.
            if isinstance(parameter, TyperArgument) and issubclass(kind := parameter.type_descriptor.annotation, Enum):
                assert all(value in (parameter.help or "") for value in kind)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_is_examples_and_then_at_most_a_screen_of_options_that_exist(self, command: str) -> None:
        output = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).output
        assert all(len(line) <= 80 for line in output.splitlines())
        assert output.splitlines()[2] == "Examples:"
        assert len(output.splitlines()) <= 50
        assert len(output.partition("\nOptions:\n")[2].partition("\n\n")[0].splitlines()) <= 24
        assert not re.search(r"<(float|int|list|Path|str)\b", output)
        assert all(re.search(rf"^  (-\w, )?{name}\b", output, re.MULTILINE) for name in PAGES[command].options)
        known = {name for one in GROUP.commands[command].params for name in one.opts}
        words = [word for line in PAGES[command].examples for word in line.partition(" -- ")[0].split()]
        assert words[:2] == ["fastfuse", command]
        assert {word for word in words if word.startswith("-")} <= known

    @pytest.mark.parametrize(
        ("module", "place"),
        [("startup", "find_spec"), ("main", "find_spec"), ("main", "__del__")],  # Python goes on after the last
    )
    def test_ctrl_c_before_the_command_line_is_loaded_leaves_no_traceback(self, module: str, place: str) -> None:
        code = (
            "import runpy, signal, sys\n"
            "class Interrupted:\n"
            "    def find_spec(self, name, *_): pass\n"
            f"    def {place}(self, *_): signal.raise_signal(signal.SIGINT)\n"
            "class Finder:\n"
            "    def find_spec(self, name, *_):\n"
            f"        if name == 'fastfuse.cli.{module}': Interrupted().find_spec(name)\n"
            "sys.meta_path.insert(0, Finder())\n"
            "runpy.run_module('fastfuse', run_name='__main__')"
        )
        done = interpreted(code)
        assert (done.returncode, done.stderr) == (130, "")

    def test_ctrl_c_while_a_command_loads_its_modules_ends_it(self) -> None:
        # Where it comes in `__del__`, an exception would be shown, and the command would go on.
        code = (
            "import os, signal, sys; from fastfuse.__main__ import main; from fastfuse.cli import main as loaded\n"
            "class Interrupted:\n"
            "    def __del__(self): signal.raise_signal(signal.SIGINT)\n"
            "class Finder:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'fastfuse.' + late: Interrupted()\n"
            "sys.meta_path.insert(0, Finder())\n"
            f"for late, words in {LATE_MODULES!r}:\n"
            "    if not (child := os.fork()):\n"
            "        sys.argv[1:] = words.split()\n"
            "        sys.exit(main())\n"
            "    if (code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) != 130: sys.exit(f'{words}: {code}')\n"
        )
        done = interpreted(code)
        assert (done.returncode, done.stderr) == (0, "")

    def test_help_and_the_reading_of_options_load_nothing_that_is_slow(self) -> None:
        # The commands need these: they take half a second and more to import, where help takes 0.12 s.
        refused = ["mount", "s3://b", "/nowhere", "--sse-c-key-file", "/nowhere", "-o", "ro"]
        described = ["run", "--channel", "train=nothing", "--base-dir", "/tmp", "--help-all"]
        code = (
            "import sys; from fastfuse.cli.main import main\nmain(['--help'])\n"
            f"for command in {COMMANDS!r}: main([command, '--help'])\n"
            f"assert (main({described!r}), main({refused!r})) == (0, 2)\n"
            "known = {'aiobotocore', 'botocore', 'httpx2', 'numpy', 'pydantic', 'pyfuse3', 'rich', 'ssl', 'trio'}\n"
            "sys.exit(repr(known & {*sys.modules}) if known & {*sys.modules} else 0)"
        )
        done = interpreted(code)
        assert done.returncode == 0, done.stderr
        lines = {*done.stdout.split("\n")}
        assert {
            "  -h, --help  Show this page.",
            "  -h, --help                    Show this page.",
            "Connection:",
        } <= lines

    def test_every_option_of_mount_but_two_has_a_variable_of_its_name(self) -> None:
        without = set()
        for parameter in GROUP.commands["mount"].params:
            named = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
            assert not named or f"FASTFUSE_{parameter.name.upper()}" in named
            without |= set() if named else {parameter.name}
        # How to run is for whoever runs it to say; `-o` is made of options that have variables.
        assert without == {"background", "mount_option"}

    def test_help_describes_every_command_and_the_exit_codes(self) -> None:
        output = CliRunner().invoke(app, ["--help"]).output
        # Each on one line of a terminal of 80 columns, and all of it on a screen.
        shown = dict(re.findall(r"^  (\S+) +(\S.*\.)$", output.partition("\nCommands:\n")[2], re.MULTILINE))
        assert shown.keys() >= {*COMMANDS}
        assert len(output.splitlines()) <= 50
        assert "Exit codes: 0 clean" in output

    def test_without_a_command_help_is_shown_as_a_usage_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 2
        assert "Usage: fastfuse" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == f"fastfuse {__version__}\n"


class TestProcess:
    def test_what_cannot_be_printed_is_an_error_of_one_line(self) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "fastfuse", "version"],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
            )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr == "fastfuse: error: standard output cannot be written: No space left on device\n"

    @pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
    def test_an_error_that_nobody_can_see_has_its_exit_code_all_the_same(self, closed: str) -> None:
        command = [sys.executable, "-m", "fastfuse", "mount", "s3://b", "--region", "no_region"]
        done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], check=False, timeout=60)
        assert done.returncode == 2

    @pytest.mark.parametrize(
        ("words", "exit_code", "stderr_kind"),
        [
            ("version", 0, "full device"),  # it warns of the variable
            ("mount s3://b --region no_region", 2, "pipe without a reader"),
            ("mount s3://b --region no_region", 2, "terminal that hung up"),
            ("mount s3://b --region no_region", 2, "terminal that nobody reads"),
            ("run --channel a={place}/data --base-dir {place}/ml -- true", 0, "full device"),
            ("run --channel a={place}/data --base-dir {place}/ml -- ls /nonexistent", 2, "terminal that hung up"),
        ],
    )
    def test_messages_that_cannot_be_written_leave_the_exit_code(
        self, words: str, exit_code: int, stderr_kind: str, tmp_path: Path
    ) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data/file").touch()
        (tmp_path / "ml").mkdir()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with unwritable(stderr_kind) as stderr:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "fastfuse", *words.format(place=tmp_path).split()],
                env={**environment, "FASTFUSE_NONSENSE": "1"}, stderr=stderr, check=False, timeout=60,
            )  # fmt: skip
        assert done.returncode == exit_code

    def test_a_mount_loads_nothing_that_draws(self) -> None:
        done = interpreted(
            "import sys, fastfuse.cli.main, fastfuse.filesystem.supervisor; print('rich' in sys.modules)"
        )
        assert done.stdout == "False\n"


def test_no_threads_are_started_for_arithmetic_unless_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert main(["version"]) == 0
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert main(["version"]) == 0
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
