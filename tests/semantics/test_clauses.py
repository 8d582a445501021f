"""Every clause of the semantics has a test that cites it."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "SEMANTICS.md"


def cited() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.update(re.findall(r"\b[NARDL]\d\b", ast.get_docstring(node) or ""))
    return found


def test_every_clause_is_cited_by_a_test() -> None:
    clauses = re.findall(r"^\*\*([NARDL]\d)\*\* ", PAGE.read_text(), re.MULTILINE)
    assert len(clauses) == len({*clauses}) > 20
    assert cited() == {*clauses}
