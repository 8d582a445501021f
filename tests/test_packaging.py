"""Tests what a built package holds: setuptools says what wheel and sdist would have, without building them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from fastfuse.version import VERSION

ROOT = Path(__file__).parents[1]

_LISTS = """
import json, sys, warnings
warnings.simplefilter("ignore")
from setuptools.dist import Distribution
made = Distribution({"script_name": "setup.py"})
made.parse_config_files()
wheel, sdist, info = (made.get_command_obj(name) for name in ("build_py", "sdist", "egg_info"))
info.egg_base = sys.argv[1]
for command in (wheel, sdist, info):
    command.ensure_finalized()
wheel_prefix = wheel.build_lib + "/"
info.run()
sdist.filelist = info.filelist
print(json.dumps({
    "version": made.get_version(),
    "wheel": [name.removeprefix(wheel_prefix) for name in wheel.get_outputs(include_bytecode=False)],
    "sdist": info.filelist.files,
}))
"""


class Package(NamedTuple):
    version: str
    wheel: set[str]
    sdist: set[str]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    done = subprocess.run(
        [sys.executable, "-c", _LISTS, str(tmp_path_factory.mktemp("egg"))],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    return Package(found["version"], {*found["wheel"]}, {*found["sdist"]})


def test_every_interpreter_that_is_started_takes_no_module_from_the_working_directory() -> None:
    texts = [path.read_text() for path in (ROOT / "fastfuse").rglob("*.py")]
    options = [option for text in texts for option in re.findall(r"sys\.executable,\s*([^,\s]+)", text)]
    assert {*options} == {'"-P"'}


def test_wheel_and_sdist_hold_every_file_of_the_package(package: Package) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "fastfuse"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    files = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    assert {"fastfuse/py.typed", "fastfuse/s3/tls.pyx", "fastfuse/deploy/systemd/fastfuse@.service"} <= files
    assert package.wheel == files
    assert package.sdist >= files | {"LICENSE", "README.md", "pyproject.toml"}


def test_the_version_is_in_one_place(package: Package) -> None:
    assert package.version == VERSION
    assert VERSION not in (ROOT / "pyproject.toml").read_text()


def test_systemd_at_the_top_is_what_the_package_holds() -> None:
    assert (ROOT / "systemd").resolve() == ROOT / "fastfuse/deploy/systemd"


@pytest.mark.parametrize(
    ("python", "package"),
    [("python3.99", "python3.99"), ("/nowhere/python3", "python3"), ("/nowhere/python", "python3")],
)
def test_make_installs_the_packages_of_the_python_that_is_named(tmp_path: Path, python: str, package: str) -> None:
    """Ubuntu 22.04 has a Python that is new enough beside its own, in packages that have its version in their names."""
    for name, script in {"apt-get": f'echo "$@" >> {tmp_path}/asked', "sudo": 'exec "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    command = ["make", "system-run", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    installed = (tmp_path / "asked").read_text().splitlines()[-1].split()
    assert {word for word in installed if word.startswith("python")} == {package, f"{package}-venv", f"{package}-dev"}
    assert done.returncode
    assert "fastfuse needs Python 3.11 or newer" in done.stderr
