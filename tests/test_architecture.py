"""The import rules and the sizes of the package, checked by reading the source (nothing is imported).

`LAYERS` says for each module, or for a whole package (``s3.*``), what of this package and which third-party
packages it may import. A module's own row goes before its package's; one without either fails: it needs a decision.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "fastfuse"

MAX_MODULE_LINES = 450
MAX_FUNCTION_LINES = 60


class Row(NamedTuple):
    """What a module may import; ``own`` names modules, or packages with everything in them (``s3.*``)."""

    own: frozenset[str] = frozenset()
    third_party: frozenset[str] = frozenset()


def row(own: str = "", third_party: str = "") -> Row:
    return Row(frozenset(own.split()), frozenset(third_party.split()))


LAYERS: Mapping[str, Row] = {
    # What everybody may use.
    "__init__": row(),
    "errors": row(),
    "objects": row(),
    "sizes": row("errors"),
    "notify": row(),
    "terminal": row("", "rich"),
    "cgroup": row(),
    "daemon": row(),
    "fstab": row("errors"),
    "log": row("errors"),
    "malloc": row(),
    "metrics": row("errors", "prometheus_client"),
    # The pure middle: numpy and nothing that waits.
    "inodes.names": row(),
    "inodes.columns": row("", "numpy"),
    "inodes.totals": row("", "numpy"),
    "inodes.table": row("errors inodes.columns inodes.totals objects", "numpy"),
    "inodes.tree": row("inodes.names", "numpy"),
    "inodes.builder": row("errors inodes.columns inodes.names inodes.table inodes.totals inodes.tree", "numpy"),
    "inodes.changes": row("inodes.columns inodes.table", "numpy"),
    "inodes.part": row("inodes.builder inodes.columns inodes.table inodes.totals", "numpy"),
    "inodes.orders": row("inodes.builder inodes.columns inodes.part inodes.table", "numpy"),
    "inodes.order_text": row("inodes.orders inodes.table sources.shuffle", "numpy"),
    "inodes.*": row("inodes.*"),
    "sources.inventory": row("errors", "pyarrow"),
    "sources.shuffle": row("", "numpy"),
    "sources.shard": row("errors"),
    "sources.*": row("errors objects sources.located sources.uri"),
    # S3: only here is a client library known.
    "s3.base": row("objects"),
    "s3.blocks": row(),
    "s3.http1": row(),
    "s3.proxies": row("errors", "botocore"),
    "s3.receivers": row("", "trio"),
    "s3.sse": row("errors"),
    "s3.made": row("errors inodes.order_text inodes.table objects s3.base", "cachetools numpy trio"),
    "s3.buffers": row("malloc s3.blocks s3.trimmed", "numpy"),
    "s3.trimmed": row("malloc"),
    "s3.*": row("errors metrics objects s3.*", "aiobotocore botocore httpx2 trio"),
    "listing.page": row("errors objects", "numpy"),
    "listing.keyspace": row(),
    "listing.frontier": row("listing.keyspace"),
    "listing.snapshot": row("errors inodes.columns inodes.names inodes.table", "numpy"),
    "listing.*": row("errors inodes.* listing.* objects sources.* s3.base s3.whole", "trio"),
    # An index, wherever it comes from; nothing here knows of FUSE.
    "indexing.origin": row("sources.shard sources.uri"),
    "indexing.files": row(),
    "indexing.progress": row("listing.sweep sources.uri terminal", "rich"),
    "indexing.summary": row("inodes.columns inodes.table inodes.totals listing.snapshot sizes", "numpy rich"),
    "indexing.command": row(
        "indexing.make indexing.origin indexing.saved indexing.summary listing.snapshot sizes sources.uri s3.base",
        "rich",
    ),
    "indexing.*": row(
        "errors indexing.* inodes.orders inodes.part listing.* sources.uri s3.base s3.client s3.session "
        "s3.upload s3.whole",
        "trio",
    ),
    "readahead.announced": row(),
    "readahead.cached": row(),
    "readahead.delivered": row(),
    "readahead.listed": row(),
    "readahead.load": row(),
    "readahead.pace": row("readahead.load"),
    "readahead.runs": row(),
    "readahead.shuffled": row(),
    "readahead.cursor": row("readahead.pace"),
    "readahead.window": row("readahead.config readahead.cursor readahead.pace readahead.ranges readahead.runs"),
    "readahead.*": row("errors objects readahead.* s3.base", "trio"),
    # FUSE: pyfuse3 is imported in `mount` only, and there only by those that talk to the kernel.
    "mount.settings": row("indexing.origin sources.uri s3.base"),
    "mount.kernel": row(),
    "mount.mountpoint": row("errors mount.children"),
    "mount.deaths": row("errors"),
    "mount.children": row("errors"),
    "mount.indexing": row("errors indexing.make indexing.origin mount.children sources.uri s3.base"),
    "mount.control": row("errors mount.children mount.mountpoint"),
    "mount.sockets": row(),
    "mount.hint_wire": row(),
    "mount.hints": row("inodes.table metrics mount.hint_wire mount.sockets", "trio"),
    "mount.orders": row("errors metrics", "numpy trio"),
    "mount.notices": row("inodes.changes mount.protocol"),
    "mount.refresh": row(
        "errors indexing.make indexing.origin inodes.changes listing.snapshot mount.children mount.control "
        "mount.notices sources.uri s3.base"
    ),
    "mount.protocol": row(),
    "mount.syscalls": row(),
    "mount.replies": row("mount.protocol mount.syscalls objects", "trio"),
    "mount.loop": row("mount.replies mount.syscalls", "pyfuse3 trio"),
    "mount.session": row(
        "errors mount.loop mount.mountpoint mount.notices mount.protocol mount.replies", "pyfuse3 trio"
    ),
    "mount.operations": row("errors inodes.table metrics mount.session objects", "pyfuse3"),
    "mount.worker": row(
        "cgroup errors listing.snapshot malloc metrics mount.children mount.hints mount.operations mount.orders "
        "mount.replies readahead s3.base s3.buffers s3.client s3.made s3.session s3.trimmed",
        "pyfuse3 trio",
    ),
    # No trio and no S3 client: it forks for as long as it lives.
    "mount.supervisor": row("errors metrics mount.* notify readahead"),
    "mount.*": row(),
    # The training-job contract. Values first; what runs a job is at the edge.
    "sagemaker": row(),
    "sagemaker.channel": row("indexing.origin sources.shard sources.uri"),
    # A job's description, whatever its spelling.
    "sagemaker.api": row(),
    "sagemaker.document": row("errors"),
    "sagemaker.request": row(
        "indexing.origin sagemaker.api sagemaker.channel sagemaker.document", "pydantic pydantic_core"
    ),
    "sagemaker.contradictions": row(
        "errors indexing.origin sagemaker.api sagemaker.channel sagemaker.document sagemaker.request sources.uri"
    ),
    "sagemaker.spelling": row("errors sagemaker.channel sagemaker.document"),
    "sagemaker.job": row(
        "errors sagemaker.channel sagemaker.contradictions sagemaker.document sagemaker.request sagemaker.spelling"
    ),
    # What a script finds before it starts.
    "sagemaker.cluster": row("errors sagemaker.channel"),
    "sagemaker.files": row("errors sagemaker.channel"),
    "sagemaker.environment": row("sagemaker.channel sagemaker.files"),
    # File mode: no FUSE, and S3 only by way of a reader.
    "sagemaker.download": row(),
    "sagemaker.download.disk_claims": row(),
    "sagemaker.download.values": row("sagemaker.download.disk_claims"),
    "sagemaker.download.pace": row(),
    "sagemaker.download.stamps": row("objects"),
    "sagemaker.download.parts": row("sagemaker.download.stamps"),
    "sagemaker.download.disk": row("errors sagemaker.download.stamps"),
    "sagemaker.download.jobs": row("errors inodes.table objects sagemaker.download.disk"),
    "sagemaker.download.landing": row("errors objects sagemaker.download.*"),
    "sagemaker.download.survey": row(
        "errors inodes.columns inodes.table inodes.totals objects sagemaker.download.* sizes", "numpy"
    ),
    "sagemaker.download.fetch": row("objects sagemaker.download.* s3.base", "trio"),
    "sagemaker.download.channel": row(
        "errors inodes.table listing.snapshot sagemaker.download.* s3.base s3.buffers s3.client s3.made s3.session",
        "trio",
    ),
    "sagemaker.pipe.settings": row("errors"),
    "sagemaker.pipe.guard": row(),
    "sagemaker.pipe.recordio": row("objects", "numpy"),
    "sagemaker.pipe.gunzip": row("objects"),
    "sagemaker.pipe.lines": row(),
    "sagemaker.pipe.order": row("inodes.columns inodes.part inodes.table sources.shuffle", "numpy"),
    "sagemaker.pipe.fifo": row("errors objects", "trio"),
    "sagemaker.pipe.lookahead": row("objects readahead", "trio"),
    "sagemaker.pipe.epoch": row("errors objects sagemaker.pipe.*", "trio"),
    "sagemaker.pipe.sequence": row("errors inodes.table sagemaker.pipe.* sources.uri", "numpy"),
    "sagemaker.pipe.channel": row(
        "errors listing.snapshot malloc objects readahead sagemaker.pipe.* s3.base s3.buffers s3.client s3.session",
        "trio",
    ),
    "sagemaker.pipe": row(),
    # A job on this host: the parent forks for as long as it lives, as a supervisor does, and each channel is one.
    "sagemaker.budget": row("config errors sagemaker.channel sizes"),
    "sagemaker.usage": row("sizes"),
    "sagemaker.lines": row(),
    "sagemaker.phases": row("sizes terminal", "rich"),
    "sagemaker.settings": row("indexing.origin sagemaker.channel sagemaker.files s3.base"),
    "sagemaker.claim": row("errors sagemaker.files"),
    "sagemaker.command": row("errors mount.children"),
    "sagemaker.guardian": row("errors mount.children mount.mountpoint sagemaker.channel sagemaker.pipe"),
    "sagemaker.serving": row(
        "errors indexing.origin metrics mount.children mount.indexing mount.mountpoint mount.settings "
        "mount.supervisor sagemaker.channel sagemaker.download sagemaker.pipe sagemaker.settings sizes"
    ),
    "sagemaker.channels": row(
        "errors indexing.origin metrics mount.children sagemaker.channel sagemaker.lines sagemaker.phases "
        "sagemaker.serving sagemaker.usage"
    ),
    "sagemaker.run": row("errors sagemaker.*"),
    # The server for tests, benches and the demo knows nothing of the mount.
    "testing.*": row("errors objects testing.*", "google_crc32c numpy"),
    # The edge.
    "config": row(
        "cgroup errors indexing.origin mount.settings s3.sse sizes sources.augmented sources.shard sources.uri s3.base"
    ),
    "options": row("config indexing.origin log s3.base", "typer"),
    "demo": row("demo.*"),
    "demo.*": row(
        "config demo.* errors mount.mountpoint sizes s3.base terminal testing.*",
        "google_crc32c numpy prometheus_client rich",
    ),
    # For training scripts: nothing but the standard library, far down.
    "hints": row("errors mount.hint_wire mount.mountpoint mount.sockets"),
    "cli_run": row(
        "config errors log options sagemaker.budget sagemaker.channel sagemaker.cluster sagemaker.job sagemaker.run "
        "sagemaker.settings s3.base",
        "typer",
    ),
    "cli": row(
        "__init__ cli_run config daemon demo errors fstab hints indexing.command indexing.origin log mount.control "
        "mount.mountpoint mount.settings mount.supervisor options sources.uri s3.base",
        "typer",
    ),
    "__main__": row("cli"),
}

# Libraries that come with aiobotocore, its extra httpx2, and pydantic.
BROUGHT_BY_OTHERS = {"botocore", "httpx2", "pydantic_core"}
# The library of an extra: whoever needs it is told to install it.
ASKED_FOR_BY_NAME = {"pyarrow"}

# Who reads the environment.
READS_ENVIRONMENT = {"cli", "cli_run", "config", "options"}
# Modules without a clock, without waiting and without I/O: their tests start no event loop.
PURE = {
    *("readahead.announced", "readahead.cached", "readahead.cursor", "readahead.delivered", "readahead.listed"),
    *("readahead.load", "readahead.pace", "readahead.runs", "readahead.shuffled", "readahead.window"),
    *("inodes.columns", "inodes.names", "inodes.table", "inodes.tree", "inodes.builder", "inodes.changes"),
    *("sagemaker.pipe.gunzip", "sagemaker.pipe.lines", "sagemaker.pipe.order", "sagemaker.pipe.recordio"),
    *("inodes.orders", "inodes.order_text", "inodes.part", "inodes.totals"),
    *("listing.keyspace", "listing.frontier", "mount.deaths", "sources.shard", "sources.shuffle", "sources.uri"),
    *("sagemaker.channel", "sagemaker.contradictions", "sagemaker.request", "sagemaker.spelling", "sagemaker.cluster"),
    *("sagemaker.budget", "sagemaker.usage"),
    *("sagemaker.download.pace", "sagemaker.download.parts", "sagemaker.download.stamps"),
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


def own_target(imported: str, known: Iterable[str]) -> str | None:
    """The module of this package that an import names, or None for somebody else's."""
    root, _, rest = imported.partition(".")
    if root != PACKAGE.name:
        return None
    if rest in known:
        return rest
    return rest.rpartition(".")[0] or "__init__"


def layer_of(name: str) -> Row | None:
    package = name.rpartition(".")[0] or name
    return LAYERS.get(name) or LAYERS.get(f"{package}.*")


def is_allowed(target: str, own: frozenset[str]) -> bool:
    return any(target == one or (one.endswith(".*") and f"{target}.".startswith(one[:-1])) for one in own)


def import_violations(modules: Mapping[str, Module]) -> list[str]:
    violations = []
    for module in modules.values():
        layer = layer_of(module.name)
        if layer is None:
            violations.append(f"{module.name} has no row in LAYERS")
            continue
        for imported in module.imports():
            root = imported.partition(".")[0]
            target = own_target(imported, modules)
            is_bad = (
                imported.startswith(".")
                or (target is not None and not _may_import(module.name, target, layer))
                or (target is None and root not in sys.stdlib_module_names and root not in layer.third_party)
            )
            if is_bad:
                violations.append(f"{module.name} may not import {imported}")
    return violations


def _may_import(name: str, target: str, layer: Row) -> bool:
    is_package_of_its_own = target.startswith(f"{name}.")  # an __init__ that gathers its modules
    return is_package_of_its_own or is_allowed(target, layer.own)


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
        if module.name not in READS_ENVIRONMENT
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
OPTION_LISTS = {"cli.mount", "cli_run.run", "cli.demo", "options.connection"}


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
    assert {"errors", "mount.supervisor", "s3.client", "__init__"} <= found.keys()
    return found


def test_every_module_imports_only_what_its_layer_allows(modules: dict[str, Module]) -> None:
    assert import_violations(modules) == []


def test_imports_form_no_cycle(modules: dict[str, Module]) -> None:
    assert cycle_of(modules) == []


@pytest.mark.parametrize(
    ("library", "users"),
    [
        ("pyfuse3", {"mount.loop", "mount.operations", "mount.session", "mount.worker"}),
        # The demo reads the endpoint of the mount that it shows.
        ("prometheus_client", {"metrics", "demo.mounting"}),
        ("typer", {"cli", "cli_run", "options"}),
    ],
)
def test_a_library_is_imported_where_it_belongs_and_nowhere_else(
    modules: dict[str, Module], library: str, users: set[str]
) -> None:
    found = {
        module.name
        for module in modules.values()
        if any(imported.partition(".")[0] == library for imported in module.imports())
    }
    assert found == users


def test_a_plain_install_brings_every_library_that_is_imported(modules: dict[str, Module]) -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    named = [re.match(r"[\w-]+", requirement) for requirement in project["dependencies"]]
    brought = {match[0].replace("-", "_") for match in named if match is not None} | BROUGHT_BY_OTHERS
    imported = {name.partition(".")[0] for module in modules.values() for name in module.imports()}
    assert imported - brought - sys.stdlib_module_names <= {PACKAGE.name, *ASKED_FOR_BY_NAME}


def test_s3_libraries_are_known_below_the_seam_alone(modules: dict[str, Module]) -> None:
    clients = {"aiobotocore", "botocore", "httpx2", "boto3"}
    for module in modules.values():
        if not module.name.startswith("s3."):
            assert not {imported.partition(".")[0] for imported in module.imports()} & clients, module.name


def test_the_environment_is_read_at_the_edge_alone(modules: dict[str, Module]) -> None:
    assert environment_violations(modules) == []


def test_what_only_decides_neither_waits_nor_looks_at_a_clock(modules: dict[str, Module]) -> None:
    assert modules.keys() >= PURE
    assert purity_violations(modules) == []


def test_modules_and_functions_are_small(modules: dict[str, Module]) -> None:
    assert size_violations(modules) == []


def test_every_row_is_some_modules(modules: dict[str, Module]) -> None:
    packages = {f"{name.rpartition('.')[0]}.*" for name in modules} | {f"{name}.*" for name in modules}
    assert [name for name in LAYERS if name not in modules and name not in packages] == []


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
        ("errors.py", "import fastfuse.log", "errors may not import fastfuse.log"),
        ("log.py", "from fastfuse.metrics import Counters", "log may not import fastfuse.metrics.Counters"),
        ("readahead/window.py", "from fastfuse.readahead import pool", "readahead.window may not import"),
        ("s3/client.py", "import boto3.session", "s3.client may not import boto3.session"),
        ("s3/client.py", "from fastfuse.mount import worker", "s3.client may not import fastfuse.mount.worker"),
        ("listing/lister.py", "def f():\n    import pyfuse3", "listing.lister may not import pyfuse3"),
        ("mount/supervisor.py", "from trio import run", "mount.supervisor may not import trio.run"),
        ("objects.py", "import numpy as np", "objects may not import numpy"),
        ("log.py", "from . import errors", "log may not import ..errors"),
        ("log.py", "if TYPE_CHECKING:\n    from fastfuse import cli", "log may not import fastfuse.cli"),
        ("novel.py", "", "novel has no row in LAYERS"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, path: str, text: str, violation: str) -> None:
    known = {"cli.py": "", "mount/worker.py": "", "readahead/pool.py": ""}
    found = import_violations(planted(tmp_path, known | {path: text}))
    assert len(found) == 1
    assert found[0].startswith(violation)


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    files = {"a.py": "from fastfuse.b import x", "b.py": "from fastfuse import c", "c.py": "import fastfuse.a"}
    assert set(cycle_of(planted(tmp_path, files))) == {"a", "b", "c"}


@pytest.mark.parametrize("text", ["import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ"])
def test_a_planted_look_at_the_environment_is_found(tmp_path: Path, text: str) -> None:
    assert len(environment_violations(planted(tmp_path, {"log.py": text}))) == 1
    assert environment_violations(planted(tmp_path, {"log.py": "", "config.py": text})) == []


@pytest.mark.parametrize("text", ["import time", "from trio import sleep", "async def f(): ...", "import os.path"])
def test_planted_waiting_in_a_pure_module_is_found(tmp_path: Path, text: str) -> None:
    assert len(purity_violations(planted(tmp_path, {"readahead/window.py": text}))) == 1


def test_a_planted_giant_is_found(tmp_path: Path) -> None:
    body = "".join(f"    x{number} = {number}\n" for number in range(MAX_FUNCTION_LINES))
    files = {
        "long.py": "x = 1\n" * (MAX_MODULE_LINES + 1),
        "short.py": "x = 1\n" * MAX_MODULE_LINES,
        "functions.py": f"async def giant():\n{body}\ndef fits():\n{body.partition(chr(10))[2]}",
    }
    assert size_violations(planted(tmp_path, files)) == [
        f"functions.giant has {MAX_FUNCTION_LINES + 1} lines",
        f"long has {MAX_MODULE_LINES + 1} lines",
    ]
