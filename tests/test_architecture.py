"""The import rules and the sizes of the package, checked by reading the source (nothing is imported).

`FLOORS` says for each folder, or for a module at the top, which other folders and modules of this package it may
import (docs/ARCHITECTURE.md draws it). `LIBRARIES` says for each library who may import it.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "fastfuse"

MAX_MODULE_LINES = 450
MAX_FUNCTION_LINES = 60

LEAVES = "awake version errors objects prices sizes log malloc metrics cgroup locks regular_files repeats"
# Who may import what, the highest floor first. A folder includes the folders in it, and may import itself. Of several
# rows, a module keeps to that of its innermost folder.
FLOORS: Mapping[str, set[str]] = {
    name: set(allowed.split())
    for name, allowed in {
        "__main__": "cli",
        "cli": f"advise cache demo deploy doctor hints report sagemaker filesystem index s3 {LEAVES}",
        "demo": f"api filesystem {LEAVES}",
        "demo_server": "",
        "deploy": "errors version",
        "doctor": f"advise index filesystem s3 {LEAVES}",
        "advise": f"index readahead s3 {LEAVES}",
        "report": f"filesystem {LEAVES}",
        "sagemaker": f"cache filesystem index readahead s3 {LEAVES}",
        "filesystem": "cache index s3 version errors log metrics cgroup",
        "filesystem.serving": (
            "filesystem.figures filesystem.talking filesystem.kernel filesystem.mounting filesystem.processes "
            "cache index readahead s3 awake errors objects log malloc metrics repeats"
        ),
        "filesystem.figures": "filesystem.mounting filesystem.processes errors prices sizes metrics cgroup",
        "filesystem.talking": (
            "filesystem.kernel filesystem.mounting filesystem.processes index readahead s3 errors objects metrics "
            "repeats"
        ),
        "filesystem.kernel": "filesystem.mounting index errors",
        "filesystem.mounting": "filesystem.processes cache index s3 errors locks",
        "filesystem.processes": "s3 errors",
        "hints": "filesystem",
        "index": f"s3 {LEAVES}",
        "cache": f"s3 {LEAVES}",
        "readahead": f"s3 {LEAVES}",
        "s3": LEAVES,
        "awake": "",
        "cgroup": "",
        "log": "errors log_output",
        "log_output": "",
        "malloc": "",
        "metrics": "version",
        "prices": "",
        "locks": "",
        "regular_files": "",
        "repeats": "",
        "sizes": "errors",
        "errors": "",
        "objects": "",
        "__init__": "api errors hints version",
        "api": "cli.startup errors filesystem",
        "version": "",
    }.items()
}
# Stricter than the floor of the folder: pure decisions, and what training scripts import.
STRICTER: Mapping[str, set[str]] = {
    name: set(allowed.split())
    for name, allowed in {
        "index.inodes": "errors objects index.inodes index.sources",
        "index.sources": "errors objects index.sources",
        "advise.model": "prices sizes",
        "hints": "filesystem.mounting.mountpoint filesystem.talking.hint_sender",
        "filesystem.talking.hint_sender": "errors filesystem.mounting.mountpoint filesystem.processes.sockets",
    }.items()
}
LIBRARIES: Mapping[str, set[str]] = {
    name: set(users.split())
    for name, users in {
        "aiobotocore": "s3",
        "anycrc": "s3.checksums",
        "botocore": "s3 sagemaker",
        "anyio": "s3",
        "httpx2": "s3",
        "numpy": "advise cache cli demo hints index filesystem readahead s3 sagemaker",
        "prometheus_client": "filesystem.figures.scrapes",
        "psutil": "",
        "pyarrow": "index",
        "pydantic": "cli report",
        "pygal": "report.layout",
        "pyfuse3": "filesystem.kernel.fuse",
        "rich": "cli demo",
        "trio": "advise awake cache doctor index filesystem readahead repeats s3 sagemaker",
        "typer": "cli",
        "xxhash": "cache.segments demo",
    }.items()
}

# Libraries that come with aiobotocore and its extra httpx2.
BROUGHT_BY_OTHERS = {"anyio", "botocore", "httpx2"}
# The library of an extra: whoever needs it is told to install it.
ASKED_FOR_BY_NAME = {"pyarrow", "pygal"}

# Who reads the environment.
READS_ENVIRONMENT = "cli"
# Modules without a clock, without waiting and without I/O: their tests start no event loop.
PURE = {
    *("cache.policy", "doctor.rules", "report.intervals"),
    *("advise.model", "prices"),
    *("index.inodes.builder", "index.inodes.changes", "index.inodes.columns"),
    *("index.inodes.selection", "index.inodes.table"),
    *("index.inodes.tree", "index.listing.frontier"),
    *("index.sources.shard", "index.sources.shuffle", "index.sources.uri"),
    "filesystem.processes.health",
    *("readahead.cursor", "readahead.limits", "readahead.orders"),
    *("readahead.pace", "readahead.page_cache", "readahead.ranges"),
    *("readahead.shuffled", "readahead.window", "s3.blocks", "s3.checksums", "s3.http1", "sagemaker.pipe.content"),
    *("sagemaker.description.channel", "sagemaker.description.cluster"),
    *("sagemaker.description.contradictions", "sagemaker.description.request"),
}
IMPURE_IMPORTS = {
    *("asyncio", "http", "io", "logging", "mmap", "os", "pathlib", "random", "select", "selectors", "socket"),
    *("subprocess", "tempfile", "threading", "time", "datetime", "trio"),
}
# Arithmetic on strings, whatever the name of its home.
PURE_IMPORTS = {"os.path.commonprefix"}


class Module(NamedTuple):
    name: str
    text: str
    tree: ast.Module

    def imports(self) -> Iterator[str]:
        """Every name imported anywhere in it, type checking and functions included."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                dots = "." * node.level
                yield from (f"{dots}{node.module or ''}.{alias.name}" for alias in node.names)


def modules_of(package: Path) -> dict[str, Module]:
    """By name without ``fastfuse.``; a package has the name of its folder, the whole one is ``__init__``."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"
        found[name] = Module(name, path.read_text(), ast.parse(path.read_text()))
    return found


# Cython's, by the same names: they import nothing of this package.
COMPILED = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.pyx")}


def own_target(imported: str, known: Iterable[str]) -> str | None:
    """The module of this package that an import names, or None for somebody else's."""
    root, _, rest = imported.partition(".")
    if root != PACKAGE.name:
        return None
    if rest in known or rest in COMPILED:
        return rest
    return rest.rpartition(".")[0] or "__init__"


def folder_of(name: str, folders: Iterable[str]) -> str | None:
    """Return the longest of `folders` that `name` is or lies in."""
    return max((one for one in folders if f"{name}.".startswith(f"{one}.")), key=len, default=None)


def import_violations(modules: Mapping[str, Module]) -> list[str]:
    violations = []
    for module in modules.values():
        floor = folder_of(module.name, FLOORS)
        if floor is None:
            violations.append(f"{module.name} has no row in FLOORS")
            continue
        allowed = FLOORS[floor] | {floor}
        room = folder_of(module.name, STRICTER)
        if room is not None:
            allowed = STRICTER[room]
        for imported in module.imports():
            target = own_target(imported, modules)
            library = imported.partition(".")[0]
            if imported.startswith("."):
                is_allowed = False
            elif target is not None:
                is_allowed = folder_of(target, allowed) is not None
            elif library in sys.stdlib_module_names:
                is_allowed = True
            else:
                is_allowed = folder_of(module.name, LIBRARIES.get(library, ())) is not None
            if not is_allowed:
                violations.append(f"{module.name} may not import {imported}")
    return violations


def cycle_of(modules: Mapping[str, Module]) -> list[str]:
    graph = {
        module.name: {target for imported in module.imports() if (target := own_target(imported, modules)) is not None}
        for module in modules.values()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def environment_violations(modules: Mapping[str, Module]) -> list[str]:
    return [
        f"{module.name} reads the environment in line {node.lineno}"
        for module in modules.values()
        if folder_of(module.name, (READS_ENVIRONMENT,)) is None
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
        or (isinstance(node, ast.ImportFrom) and any(alias.name in {"environ", "getenv"} for alias in node.names))
    ]


def purity_violations(modules: Mapping[str, Module]) -> list[str]:
    violations = []
    for name in sorted(PURE & modules.keys()):
        module = modules[name]
        violations += [
            f"{name} imports {imported}"
            for imported in module.imports()
            if imported.partition(".")[0] in IMPURE_IMPORTS and imported not in PURE_IMPORTS
        ]
        violations += [
            f"{name} is asynchronous in line {node.lineno}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await)
        ]
    return violations


# Functions that are a list of the options of a command and their help: as long as the list.
OPTION_LISTS = {
    "cli.config.mount_settings",
    "cli.index_options.origin",
    "cli.deploy_commands.deploy",
    "cli.run_command.run",
    "cli.options.connection",
}


def size_violations(modules: Mapping[str, Module]) -> list[str]:
    violations = []
    for module in modules.values():
        lines = module.text.count("\n")
        if lines > MAX_MODULE_LINES:
            violations.append(f"{module.name} has {lines} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES and f"{module.name}.{node.name}" not in OPTION_LISTS:
                    violations.append(f"{module.name}.{node.name} has {length} lines")
    return violations


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    found = modules_of(PACKAGE)
    assert {"errors", "filesystem.supervisor", "s3.client", "__init__"} <= found.keys()
    return found


def test_every_module_imports_only_what_its_floor_allows(modules: dict[str, Module]) -> None:
    assert import_violations(modules) == []


def test_imports_form_no_cycle(modules: dict[str, Module]) -> None:
    assert cycle_of(modules) == []


def test_a_plain_install_brings_every_library_that_is_imported(modules: dict[str, Module]) -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    named = [re.match(r"[\w-]+", requirement) for requirement in project["dependencies"]]
    brought = {match[0].replace("-", "_") for match in named if match is not None} | BROUGHT_BY_OTHERS
    imported = {name.partition(".")[0] for module in modules.values() for name in module.imports()}
    assert imported - brought - sys.stdlib_module_names <= {PACKAGE.name, *ASKED_FOR_BY_NAME}


def test_the_bench_imports_nothing_of_the_tests() -> None:
    bench = modules_of(PACKAGE.parent / "bench")
    assert "s3server.service" in bench
    assert [name for name, module in bench.items() if any(one.startswith("tests.") for one in module.imports())] == []


def test_no_two_modules_share_a_name(modules: dict[str, Module]) -> None:
    files = [name for name in modules if not (PACKAGE / name.replace(".", "/")).is_dir()]
    names = Counter(name.rpartition(".")[2] for name in files if not name.endswith("__main__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_environment_is_read_at_the_edge_alone(modules: dict[str, Module]) -> None:
    assert environment_violations(modules) == []


def test_what_only_decides_neither_waits_nor_looks_at_a_clock(modules: dict[str, Module]) -> None:
    assert modules.keys() >= PURE
    assert purity_violations(modules) == []


def test_modules_and_functions_are_small(modules: dict[str, Module]) -> None:
    assert size_violations(modules) == []


def test_every_row_names_what_is_there(modules: dict[str, Module]) -> None:
    named = [*FLOORS, *(each for allowed in FLOORS.values() for each in allowed), *STRICTER, READS_ENVIRONMENT]
    assert [name for name in named if name not in modules] == []


def planted(tmp_path: Path, files: Mapping[str, str]) -> dict[str, Module]:
    """A package of its own with these files."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return modules_of(tmp_path)


@pytest.mark.parametrize(
    ("path", "text", "violation"),
    [
        ("s3/client.py", "import boto3.session", "s3.client may not import boto3.session"),
        ("index/lister.py", "def f():\n    import pyfuse3", "index.lister may not import pyfuse3"),
        ("filesystem/kernel/x.py", "from fastfuse.filesystem import worker", "filesystem.kernel.x may not import"),
        ("log.py", "from . import errors", "log may not import ..errors"),
        ("log.py", "if TYPE_CHECKING:\n    from fastfuse import cli", "log may not import fastfuse.cli"),
        ("novel.py", "", "novel has no row in FLOORS"),
        ("log.py", "import os\nos.getenv('X')", "log reads the environment in line 2"),
        ("readahead/window.py", "import time", "readahead.window imports time"),
        ("readahead/window.py", "async def f(): ...", "readahead.window is asynchronous in line 1"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, text: str, violation: str) -> None:
    known = {"cli.py": "import os\nos.environ", "filesystem/worker.py": "", "readahead/pool.py": ""}
    modules = planted(tmp_path, known | {path: text})
    [found] = import_violations(modules) + environment_violations(modules) + purity_violations(modules)
    assert found.startswith(violation)


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    files = {"a.py": "from fastfuse.b import x", "b.py": "from fastfuse import c", "c.py": "import fastfuse.a"}
    assert set(cycle_of(planted(tmp_path, files))) == {"a", "b", "c"}
