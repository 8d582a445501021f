"""`fastfuse install`: which files it writes, which it leaves alone, and what shells and man make of them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer.main

from fastfuse.cli.main import app, main
from fastfuse.deploy.install import writable_by_others

PROGRAM = "/opt/ff/bin/fastfuse"
COMMANDS = vars(typer.main.get_command(app))["commands"]


def install(root: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what the command says of each file, by the path below the root."""
    assert main(["install", "--root", str(root), "--program", PROGRAM, *words]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    return {str(Path(path).relative_to(root)): outcome for outcome, path, *_ in lines}


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    assert main(["install", "--root", str(root), "--program", PROGRAM, "--prefix", "/usr"]) == 0
    return root


def test_a_file_that_is_written_is_named_and_kept_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    umask = os.umask(0o077)
    try:
        said = install(tmp_path, capsys=capsys)
    finally:
        os.umask(umask)
    before = contents(tmp_path)
    assert said == dict.fromkeys(before, "wrote")
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in tmp_path.rglob("*"))
    assert {Path(name).parts[:2] for name in before} == {("usr", "local"), ("usr", "sbin"), ("etc", "fastfuse")}
    assert install(tmp_path, capsys=capsys) == dict.fromkeys(before, "unchanged")
    assert contents(tmp_path) == before


def test_what_was_changed_since_is_kept_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, capsys=capsys)
    [unit] = tmp_path.rglob("fastfuse@.service")
    unit.write_text(unit.read_text().replace("RestartSec=5", "RestartSec=50"))
    [target] = tmp_path.rglob("fastfuse.target")
    target.write_text("[Unit]\n")
    changed = {str(path.relative_to(tmp_path)) for path in (unit, target)}
    said = install(tmp_path, capsys=capsys)
    assert {name for name, outcome in said.items() if outcome == "kept"} == changed
    assert "RestartSec=50" in unit.read_text()
    removed = install(tmp_path, "--remove", capsys=capsys)
    assert {name for name, outcome in removed.items() if outcome == "kept"} == changed == contents(tmp_path).keys()
    unit.unlink()
    assert install(tmp_path, capsys=capsys)[str(unit.relative_to(tmp_path))] == "wrote"


def test_what_was_installed_earlier_is_replaced_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--root", str(tmp_path), "--program", "/elsewhere/fastfuse"]) == 0
    capsys.readouterr()
    said = install(tmp_path, capsys=capsys)
    named = {name for name, text in contents(tmp_path).items() if PROGRAM in text}
    assert {name for name, outcome in said.items() if outcome == "wrote"} == named
    assert len(named) == 3
    assert not any("/elsewhere" in text for text in contents(tmp_path).values())
    assert set(install(tmp_path, "--remove", capsys=capsys).values()) == {"removed"}
    assert contents(tmp_path) == {}
    assert set(install(tmp_path, "--remove", capsys=capsys).values()) == {"missing"}


def test_a_package_gets_usr_and_the_program_that_it_names(installed: Path) -> None:
    unit = (installed / "usr/lib/systemd/system/fastfuse@.service").read_text()
    assert re.findall(r"^Exec\w+=-?(\S+)", unit, re.MULTILINE) == [PROGRAM] * 2
    for kind in ("fastfuse", "fuse.fastfuse"):
        helper = installed / f"usr/sbin/mount.{kind}"
        assert helper.stat().st_mode & 0o777 == 0o755
        assert f'exec {PROGRAM} "$@"' in helper.read_text()


def test_a_helper_passes_everything_on_but_what_is_only_pretended(tmp_path: Path) -> None:
    assert main(["install", "--root", str(tmp_path), "--program", "/bin/echo"]) == 0
    helper = tmp_path / "usr/sbin/mount.fuse.fastfuse"
    words = ["s3://b", "/m m", "-v", "-o", "rw,allow_other", "-t", "fuse.fastfuse"]
    assert subprocess.check_output([helper, *words], text=True) == " ".join(words) + "\n"
    assert subprocess.check_output([helper, *words[:2], "-f", *words[2:]]) == b""  # mount -fav


def test_helpers_of_mount_are_in_sbin_if_it_is_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sbin").mkdir()
    said = install(tmp_path, capsys=capsys)
    assert {name for name in said if "sbin" in name} == {"sbin/mount.fastfuse", "sbin/mount.fuse.fastfuse"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--program", "fastfuse"], "--program 'fastfuse' is no absolute path"),
        (["--program", "/a b/fastfuse"], "--program '/a b/fastfuse' is no absolute path"),
        (["--program", "/a%n/fastfuse"], "--program '/a%n/fastfuse' is no absolute path"),
        (["--program", "/a/b", "--prefix", "usr"], "--prefix 'usr' is no absolute path"),
        (["--root", "/", "--program", "/nowhere/fastfuse"], "/nowhere/fastfuse is no program"),
        (["--program", "/a/b"], "{unit} cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_installed_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (tmp_path / "usr").write_text("")
    code = main(["install", "--root", str(tmp_path), *words])
    lines = capsys.readouterr().err.splitlines()
    unit = f"{tmp_path}/usr/local/lib/systemd/system/fastfuse@.service"
    assert lines[0].startswith("fastfuse: error: " + message.format(unit=unit))
    assert (code, len(lines)) == (1 if "cannot be" in message else 2, 2)


def test_a_program_that_users_can_change_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    program, link = tmp_path / "venv/fastfuse", tmp_path / "links/fastfuse"
    for path in (program, link):
        path.parent.mkdir()
    program.write_text("")
    link.symlink_to(program)
    program.parent.chmod(0o757)
    for path in (program, link):
        assert program.parent in [*writable_by_others(path)]
    program.parent.chmod(0o755)
    assert not {program, program.parent} & {*writable_by_others(link)}


def completed(installed: Path, *lines: str) -> list[list[str]]:
    """Return what bash offers at the end of each line."""
    script = """
source "$1"; shift
for line in "$@"; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _fastfuse_completion fastfuse
    echo "${COMPREPLY[@]}"
done
"""
    file = installed / "usr/share/bash-completion/completions/fastfuse"
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    command = ["bash", "-uc", script, "bash", str(file), *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_completes_commands_options_and_choices_and_else_names_of_files(installed: Path) -> None:
    expected: Mapping[str, list[str]] = {
        "fastfuse st": ["status", "stats"],
        "fastfuse mount --memory": ["--memory-target"],
        "fastfuse mount s3://b /mnt --log-format ": ["human", "json"],
        # Nothing of ours: bash then offers files.
        "fastfuse mount --log-file ": [],
        "fastfuse mount ": [],
        "fastfuse unmount --all": ["--all", "--all-users"],
    }
    assert dict(zip(expected, completed(installed, *expected), strict=True)) == expected


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "fastfuse mount --log-format "}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "fastfuse mount --log-format ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_other_shells_ask_the_same_program(installed: Path, shell: str, asked: Mapping[str, str]) -> None:
    [file] = [path for path in installed.rglob("*fastfuse*") if path.is_file() and f"/{shell}/" in str(path)]
    assert f"_FASTFUSE_COMPLETE=complete_{shell}" in file.read_text()
    command = [sys.executable, "-m", "fastfuse"]
    environment = {"_FASTFUSE_COMPLETE": f"complete_{shell}", **asked}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert re.findall("human|json", done.stdout) == ["human", "json"]


def test_every_command_has_a_page_that_names_its_options(installed: Path) -> None:
    pages = {path.name: path.read_text().replace("\\-", "-") for path in (installed / "usr/share/man/man1").iterdir()}
    assert pages.keys() == {"fastfuse.1", *(f"fastfuse-{name}.1" for name in COMMANDS)}
    for name, command in COMMANDS.items():
        page = pages[f"fastfuse-{name}.1"]
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        options = {word for parameter in shown for word in parameter.opts if word.startswith("-")}
        terms = {word.rstrip(",") for line in re.findall(r"^\.B (.*)$", page, re.MULTILINE) for word in line.split()}
        assert options - {"--help-all"} <= terms


@pytest.mark.skipif(shutil.which("groff") is None, reason="takes groff")
def test_roff_reads_the_pages_without_a_warning_and_prints_what_help_says(installed: Path) -> None:
    pages = sorted((installed / "usr/share/man/man1").iterdir())
    command = ["groff", "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=300n", *map(str, pages)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "fastfuse run --channel train=s3://BUCKET/PREFIX -- python train.py" in done.stdout
    assert "('fastfuse fuse-helper')" in done.stdout
