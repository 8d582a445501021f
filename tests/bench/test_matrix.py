from bench.candidates import CANDIDATES
from bench.command import chosen, default_matrix
from bench.server import PROFILES


def test_everybody_and_every_kind_of_server_has_its_turn() -> None:
    cells = default_matrix()
    assert {name for cell in cells for name in cell.candidates} == set(CANDIDATES)
    assert {cell.profile.name for cell in cells} == set(PROFILES)


def test_of_some_candidates_only_their_cells_are_left() -> None:
    cells = default_matrix(["local"], runs=2)
    assert [(cell.workload.name, cell.candidates, cell.runs) for cell in cells] == [("warm-4", ["local"], 2)]


def test_a_choice_is_every_workload_on_every_profile() -> None:
    cells = chosen(["s3", "fast"], ["small-1", "warm-4"], ["fastfuse", "local"])
    assert [(cell.profile.name, cell.workload.name, cell.candidates) for cell in cells] == [
        ("s3", "small-1", ["fastfuse"]),
        ("s3", "warm-4", ["fastfuse", "local"]),
        ("fast", "small-1", ["fastfuse"]),
        ("fast", "warm-4", ["fastfuse", "local"]),
    ]


def test_records_are_not_read_from_those_that_make_up_bytes() -> None:
    (cell,) = chosen(["s3"], ["records-4"], list(CANDIDATES))
    assert {"fuse-only", "local"}.isdisjoint(cell.candidates)
    assert {"raw", "fastfuse"} <= set(cell.candidates)
