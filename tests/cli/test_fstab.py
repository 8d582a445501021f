"""`-o` options and the arguments that mount(8) passes."""

import pytest

from fastfuse.cli.fstab import expand, helper_arguments
from fastfuse.errors import ConfigurationError

OWN = {"region": True, "endpoint_url": True, "uid": True, "allow_other": False, "strict": False}


def test_own_options_become_long_options_in_place() -> None:
    words = ["s3://b/p", "/mnt", "-o", "uid=1000,allow_other", "--verbose"]
    assert expand(words, OWN) == ["s3://b/p", "/mnt", "--uid=1000", "--allow-other", "--verbose"]


@pytest.mark.parametrize("name", ["endpoint_url", "endpoint-url"])
def test_own_options_are_taken_with_underscores_and_with_hyphens(name: str) -> None:
    assert expand(["-o", f"{name}=https://h:1/a=b"], OWN) == ["--endpoint-url=https://h:1/a=b"]


def test_what_is_for_the_kernel_stays_one_option_each() -> None:
    assert expand(["-o", "nodev,noatime,context=a:b"], OWN) == ["-o", "nodev", "-o", "noatime", "-o", "context=a:b"]


def test_what_mount_adds_and_what_only_the_boot_order_needs_is_left_out() -> None:
    line = "rw,dev,suid,_netdev,nofail,user=jo,x-systemd.automount,x-gvfs-show,comment=x,relatime"
    assert expand(["-o", line, "a"], OWN) == ["a"]


@pytest.mark.parametrize("words", [["-o", "strict,"], ["-ostrict"], ["-o", ",,strict"]])
def test_attached_options_and_empty_ones_are_taken(words: list[str]) -> None:
    assert expand(words, OWN) == ["--strict"]


def test_a_comma_inside_a_value_is_escaped_with_a_backslash() -> None:
    assert expand(["-o", r"context=u:c0\,c1,strict"], OWN) == ["-o", "context=u:c0,c1", "--strict"]


@pytest.mark.parametrize("name", ["wat", "remount", "bind", "help", "region2", "ro2"])
def test_an_option_that_nobody_knows_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^-o {name} is not a mount option"):
        expand(["-o", f"ro,{name}=1"], OWN)


@pytest.mark.parametrize("option", ["region", "region="])
def test_an_option_without_the_value_that_it_needs_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^-o region needs a value$"):
        expand(["-o", option, "/mnt"], OWN)


def test_nothing_is_rewritten_behind_a_double_hyphen() -> None:
    assert expand(["-o", "strict", "--", "-o", "wat"], OWN) == ["--strict", "--", "-o", "wat"]


def test_a_lone_o_is_left_for_the_parser_to_complain_about() -> None:
    assert expand(["a", "-o"], OWN) == ["a", "-o"]


def test_a_command_line_that_starts_with_a_source_is_a_mount_in_the_background() -> None:
    assert helper_arguments(["s3://b/p", "/mnt", "-o", "rw"]) == ["mount", "--daemon", "s3://b/p", "/mnt", "-o", "rw"]


def test_what_mount_passes_to_its_helpers_beside_options_changes_nothing() -> None:
    words = ["s3://b/p", "/mnt", "-n", "-s", "-v", "-t", "fuse.fastfuse", "-o", "rw"]
    assert helper_arguments(words) == ["mount", "--daemon", "s3://b/p", "/mnt", "-v", "-o", "rw"]


@pytest.mark.parametrize("words", [[], ["version"], ["mount", "s3://b/p"], ["/mnt", "s3://b/p"]])
def test_any_other_command_line_is_left_alone(words: list[str]) -> None:
    assert helper_arguments(words) == words
