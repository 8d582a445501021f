"""Every clause of the semantics has a test that cites it."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CLAUSES_PAGE = TESTS.parents[1] / "shared" / "semantics.md"
CLAUSES = {
    *("N1", "N2", "N3", "N4", "N5", "N6", "A1", "A2", "A3", "R1", "D1", "D2", "D3", "D4", "D5", "D6"),
    *("L1", "L2", "L3", "L4", "L5", "L6"),
}


def cited() -> set[str]:
    found: set[str] = set()
    for path in [*TESTS.glob("semantics/test_*.py"), *TESTS.glob("reading/test_*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.update(re.findall(r"\b[NARDL]\d\b", ast.get_docstring(node) or ""))
    return found


def test_every_clause_is_cited_by_a_test() -> None:
    page = CLAUSES_PAGE.read_text() if CLAUSES_PAGE.exists() else ""
    assert cited() == (set(re.findall(r"^([NARDL]\d) ", page, re.MULTILINE)) or CLAUSES)
