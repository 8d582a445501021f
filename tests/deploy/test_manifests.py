"""The manifests for Kubernetes: what they say and allow; `tests/filesystem/test_fuse_helper.py` plays a pod."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastfuse.cli.main import app
from fastfuse.cli.messages import variables_of
from fastfuse.deploy.cluster_manifest import Kind, manifest
from fastfuse.errors import ConfigurationError
from tests.mounting import run_fastfuse

MIB = 1 << 20
# The first with native sidecars, and the newest that the validator knows.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
TRAINS = ("--training-image", "repo/train:1")
EVERYTHING = (
    *("--name", "data-1", "--image", "host:5000/fastfuse@sha256:0", "--mountpoint", "/data/a b"),
    *("--memory-target", "2GiB", "--objects", "10000000", "-o", "region=eu-west-1,training", "--secret", "s3"),
    *("--service-account", "reader"),
)
KINDS = {
    "sidecar": ("--sidecar", *TRAINS),
    "job": ("--job", "--hosts", "4", *TRAINS),
    "daemonset": ("--daemonset",),
}


def printed(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["deploy", "kubernetes", "s3://bucket/train", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    [found] = yaml.safe_load_all(done.output)
    return dict(found)


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable, if there is one, and ``$$`` by ``$``, as Kubernetes does in arguments."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = made["spec"] if made["kind"] == "Pod" else made["spec"]["template"]["spec"]
    return spec


def containers(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    pod = pod_of(made)
    return {one["name"]: one for one in (*pod["initContainers"], *pod["containers"])}


@pytest.mark.parametrize("options", [(), EVERYTHING], ids=["least", "everything"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_is_what_kubernetes_publishes_a_schema_of(kind: str, options: tuple[str, ...]) -> None:
    made = printed(*KINDS[kind], *options)
    for version in VERSIONS:
        kubernetes_validate.validate(made, version, strict=True)
    assert made["metadata"]["name"] == ("data-1" if options else "fastfuse")
    assert "namespace" not in made["metadata"]  # that is kubectl's
    # No schema says that volumes and what selects pods are named twice.
    volumes = {one["name"] for one in pod_of(made)["volumes"]}
    assert {mount["name"] for one in containers(made).values() for mount in one["volumeMounts"]} == volumes
    if kind == "daemonset":
        labels = made["spec"]["template"]["metadata"]["labels"]
        assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_helper_has_rights_and_only_the_mount_has_credentials(kind: str) -> None:
    found = containers(printed(*KINDS[kind], *EVERYTHING))
    helper = found.pop("fuse-helper")
    assert helper["securityContext"] == {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True}
    assert "envFrom" not in helper
    assert {one["name"]: one.get("mountPropagation") for one in helper["volumeMounts"]} == {
        "mounts": "Bidirectional",
        "socket": None,
    }
    for container in found.values():
        rights = container["securityContext"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "privileged" not in rights
    mount = found.pop("fastfuse")
    assert mount["securityContext"]["runAsNonRoot"] is True
    assert mount["envFrom"] == [{"secretRef": {"name": "s3"}}]
    # Whoever has the socket could have the helper mount, and only the helper shows its mounts to others.
    assert [one["name"] for one in mount["volumeMounts"]] == ["socket"]
    for training in found.values():
        assert "envFrom" not in training
        [volume] = training["volumeMounts"]
        assert (volume["name"], volume["mountPropagation"]) == ("mounts", "HostToContainer")


@pytest.mark.parametrize("kind", KINDS)
def test_helper_mount_and_training_agree_on_the_place(kind: str) -> None:
    made = printed(*KINDS[kind], *EVERYTHING)
    found = containers(made)
    shared = {one["name"]: one["mountPath"] for one in found["fuse-helper"]["volumeMounts"]}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    helper = commands["fuse-helper"].make_context("fuse-helper", [*found["fuse-helper"]["args"][1:]]).params
    arguments = [expanded(word, {"POD_IP": "fd00::1"}) for word in found["fastfuse"]["args"]]
    mount = commands["mount"].make_context("mount", arguments[1:]).params
    assert (found["fuse-helper"]["args"][0], arguments[0]) == ("fuse-helper", "mount")
    assert helper["mountpoint"] == Path(shared["mounts"]) / "a b"
    assert helper["uid"] == found["fastfuse"]["securityContext"]["runAsUser"]
    assert helper["path"] == mount["fuse_socket"]
    assert found["fuse-helper"]["startupProbe"]["exec"]["command"][-1] == str(helper["path"])
    assert found["fastfuse"]["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert helper["path"].is_relative_to(shared["socket"])
    assert (mount["source"], mount["region"], mount["training"]) == ("s3://bucket/train", "eu-west-1", True)
    assert mount["metrics_listen"] == f"fd00::1:{found['fastfuse']['ports'][0]['containerPort']}"
    if kind == "daemonset":
        assert pod_of(made)["volumes"][0]["hostPath"]["path"] == "/data"
    else:
        assert found["training"]["volumeMounts"][0]["mountPath"] == "/data"


def test_the_memory_is_the_target_what_may_come_on_top_and_the_table() -> None:
    table_mib = 191 * 10**6 / MIB
    for target, objects, target_mib in ("1GiB", "1000000", 1024), ("128MiB", "3000000", 128):
        mount = containers(printed("--daemonset", "--memory-target", target, "--objects", objects))["fastfuse"]
        requested = int(mount["resources"]["requests"]["memory"].removesuffix("Mi"))
        limit = int(mount["resources"]["limits"]["memory"].removesuffix("Mi"))
        assert 0 <= requested - (target_mib + 64 + int(objects) // 10**6 * table_mib) < 1
        assert 0 <= limit - (2 * target_mib + 512 + 128 + int(objects) // 10**6 * table_mib) < 1
        assert f"--memory-target={target}" in mount["args"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "one of --sidecar, --job and --daemonset"),
        (("--sidecar", "--job", *TRAINS), "one of --sidecar, --job and --daemonset"),
        (("--sidecar",), "--training-image and COMMAND go with"),
        (("--daemonset", "--", "python"), "--training-image and COMMAND go with"),
        (("--sidecar", *TRAINS, "--hosts", "2"), "--hosts says how many pods --job starts"),
        (("--daemonset", "--name", "Data"), "--name 'Data' cannot be a name in Kubernetes"),
        (("--daemonset", "--name", "a" * 53), "cannot be a name in Kubernetes"),
        (("--daemonset", "--name", "a\n"), r"--name 'a\n' cannot be a name"),
        (("--daemonset", "--service-account", ""), "--service-account '' cannot be a name"),
        (("--daemonset", "--secret", "a: b"), "--secret 'a: b' cannot be a name"),
        (("--daemonset", "--image", 'x" y'), "is not an image"),
        (("--job", "--training-image", "-x"), "--training-image '-x' is not an image"),
        (("--daemonset", "--mountpoint", "data/x"), "--mountpoint 'data/x' is not a directory in a directory"),
        (("--daemonset", "--mountpoint", "/a/../b"), "is not a directory in a directory"),
        (("--daemonset", "--mountpoint", "/a/b:c"), "is not a directory in a directory"),
        (("--daemonset", "--mountpoint", "/a/b\x1b"), r"'/a/b\x1b' cannot stand in a manifest"),
        (("--daemonset", "--memory-target", "25%"), "--memory-target '25%' is not a size"),
        (("--daemonset", "-o", "regio=eu-west-1"), "-o regio is not a mount option"),
        (("--daemonset", "-o", "log-format=xml"), "Invalid value for '--log-format'"),
        (("--daemonset", "-o", "channel=train"), "--fuse-socket leaves the place to the helper"),
        (("--daemonset", "-o", "memory-target=64GiB"), "-o memory-target does not go with what the manifest has"),
        (("--daemonset", "-o", "metrics-listen=9567"), "-o metrics-listen does not go with what the manifest has"),
        (("--job", *TRAINS, "--hosts", "4", "-o", "shard=2/4"), "-o shard does not go with what the manifest has"),
        (("--daemonset", "-o", "daemon"), "-o daemon does not go with what the manifest has"),
    ],
)
def test_what_no_pod_could_start_with_is_one_line(words: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["deploy", "kubernetes", "s3://bucket/train", *words])
    shown = str(done.exception) if isinstance(done.exception, ConfigurationError) else done.output
    assert message in shown
    assert done.exit_code != 0


def test_what_only_the_pod_has_is_not_asked_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"MOUNTPOINT": "/mnt/data", "CHANNEL": "train", "INDEX_MAX_AGE": "1h"}.items():
        monkeypatch.setenv(f"FASTFUSE_{variable}", value)
    options = "ca-bundle=/pod/ca.pem,sse-c-key-file=/pod/key,cache=/pod/cache,cache-size=1TiB,shard-by=bytes"
    mount = containers(printed(*KINDS["job"], "--memory-target", "64TiB", "-o", options))["fastfuse"]
    assert mount["args"][-1] == f"-o{options}"


# Everything that means something to YAML, to a template, to Kubernetes, to a shell or to JSON.
HOSTILE = st.text(st.sampled_from("\"'\\:#-{}[]&*!|>%@`$()/ ,=?~\n\té😀xyz") | st.characters(), max_size=30) | (
    st.sampled_from(
        ['"', "'", "{{ source }}", "$(POD_IP)", "$$(POD_IP)", "\\", "\\u0022", "- x", "\n  privileged: true"]
    )
)


def made_of(kind: Kind, source: str, place: PurePosixPath, options: str, words: list[str]) -> dict[str, Any]:
    names = {"--name": "n"} | dict.fromkeys(("--service-account", "--secret"))
    images = {"--image": "i", "--training-image": "t"}
    text = manifest(
        kind, source, place, names=names, images=images, memory_target="1GiB", memory_bytes=(1, 1),
        mount_options=options, training_command=words, hosts=1,
    )  # fmt: skip
    return dict(yaml.safe_load(text))


@given(kind=st.sampled_from(Kind), values=st.tuples(HOSTILE, HOSTILE, HOSTILE), words=st.lists(HOSTILE, min_size=1))
def test_no_value_becomes_anything_but_itself(kind: Kind, values: tuple[str, str, str], words: list[str]) -> None:
    source, name, options = values
    source, place = f"s3://bucket/{source}", PurePosixPath(f"/data/x{name}y")
    try:
        made = made_of(kind, source, place, options, words)
    except ConfigurationError:
        return
    plain = made_of(kind, "source", PurePosixPath("/plain/x"), "options", ["words"])
    found, expected = containers(made), containers(plain)
    environment = {"POD_IP": "1.2.3.4", "source": "replaced"}
    said = [expanded(word, environment) for word in found["fastfuse"]["args"]]
    assert (said[1], said[-1]) == (source, f"-o{options}")
    path = PurePosixPath("/mnt/fastfuse", place.name)
    assert expanded(found["fuse-helper"]["args"][-1], environment) == str(path)
    if kind is not Kind.DAEMONSET:
        assert [expanded(word, environment) for word in found["training"]["command"]] == words
        expected["training"]["command"] = found["training"]["command"]
        assert found["training"]["volumeMounts"][0]["mountPath"] == str(place.parent)
        expected["training"]["volumeMounts"][0]["mountPath"] = str(place.parent)
    else:
        pod_of(plain)["volumes"][0]["hostPath"]["path"] = str(place.parent)
    expected["fastfuse"]["args"][1], expected["fastfuse"]["args"][-1] = found["fastfuse"]["args"][1:7:5]
    expected["fuse-helper"]["args"][-1] = found["fuse-helper"]["args"][-1]
    assert made == plain


@pytest.mark.parametrize(("index", "shown"), [("0", "1/4"), ("3", "4/4"), (None, None)])
def test_the_shard_of_a_pod_counts_from_one(tmp_path: Path, index: str | None, shown: str | None) -> None:
    (tmp_path / "fastfuse").write_text('#!/bin/sh\necho "$FASTFUSE_SHARD $*"\n')
    (tmp_path / "fastfuse").chmod(0o755)
    mount = containers(printed(*KINDS["job"]))["fastfuse"]
    assert "FASTFUSE_SHARD" in variables_of(typer.main.get_group(app))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "POD_IP": "1.2.3.4"}
    environment |= {} if index is None else {"JOB_COMPLETION_INDEX": index}
    words = [expanded(word, environment) for word in (*mount["command"], *mount["args"])]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if shown is None:
        assert done.returncode != 0
        assert not done.stdout
    else:
        assert done.stdout.startswith(f"{shown} mount s3://bucket/train --fuse-socket=/run/fastfuse/socket ")


@pytest.mark.parametrize(("what", "begins"), [("grafana", "{"), ("prometheus", "# Alerts on mounts")])
def test_what_is_not_made_is_printed_as_it_is(what: str, begins: str) -> None:
    done = run_fastfuse("deploy", what)
    assert (done.returncode, done.stdout.startswith(begins)) == (0, True)
