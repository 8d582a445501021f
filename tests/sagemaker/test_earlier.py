"""The files of an earlier run are moved aside whole, or kept, and nothing of anybody else's is touched."""

import os
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.files import JobPaths, put_aside
from tests.mounting import tmpfs

LEFT = ("input/data/train/a", "input/data/test/deep/b", "model/weights", "output/data/plot", "checkpoints/1")


def fill(base: Path, *names: str) -> None:
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(name)


def files(base: Path) -> set[str]:
    return {str(path.relative_to(base)) for path in base.rglob("*") if not path.is_dir()} - {".fastfuse-run"}


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    return JobPaths(tmp_path)


def test_files_move_to_the_name_of_the_run_that_left_them(paths: JobPaths) -> None:
    put_aside(paths, "job-1", keeps=False)
    fill(paths.base, *LEFT, "code/train.py", "input/config/hyperparameters.json")
    assert put_aside(paths, "job-2", keeps=False) == paths.base / "runs" / "job-1"
    stays = {"code/train.py", "input/config/hyperparameters.json"}
    assert files(paths.base) == {f"runs/job-1/{name}" for name in LEFT} | stays
    fill(paths.base, "model/weights")
    assert put_aside(paths, "job-1", keeps=False) == paths.base / "runs" / "job-2"
    assert put_aside(paths, "job-1", keeps=False) is None


def test_folders_that_a_failed_download_left_empty_are_moved(paths: JobPaths) -> None:
    folder = paths.data / "train" / "a" / "b"
    folder.mkdir(parents=True)
    assert put_aside(paths, "job-1", keeps=False) is None
    assert put_aside(paths, "job-2", keeps=False) == paths.base / "runs" / "job-1"
    assert not (paths.data / "train").exists()
    (paths.data / "train").mkdir()
    assert put_aside(paths, "job-3", keeps=False) is None


def test_a_mount_in_the_place_of_a_channel_is_somebodys_and_stays(paths: JobPaths) -> None:
    put_aside(paths, "job-1", keeps=False)
    fill(paths.base, "input/data/other/a")
    with tmpfs(paths.data / "train") as place:
        (place / "a").touch()
        assert put_aside(paths, "job-2", keeps=False) == paths.base / "runs" / "job-1"
        assert files(paths.base) == {"input/data/train/a", "runs/job-1/input/data/other/a"}


def test_runs_of_one_name_stay_apart(paths: JobPaths) -> None:
    put_aside(paths, "job", keeps=False)
    for number in (1, 2, 3):
        fill(paths.base, "model/weights")
        suffix = "" if number == 1 else f"-{number}"
        assert put_aside(paths, "job", keeps=False) == paths.base / "runs" / f"job{suffix}"
    assert len(files(paths.base)) == 3


def test_a_run_that_keeps_moves_nothing_and_its_files_have_its_name(paths: JobPaths) -> None:
    fill(paths.base, *LEFT)
    assert put_aside(paths, "job-2", keeps=True) is None
    assert files(paths.base) == set(LEFT)
    assert put_aside(paths, "job-3", keeps=False) == paths.base / "runs" / "job-2"


def test_files_that_no_run_left_are_not_moved(paths: JobPaths) -> None:
    fill(paths.base, "model/weights")
    with pytest.raises(ConfigurationError, match="model has files that no run of fastfuse left there"):
        put_aside(paths, "job", keeps=False)
    assert files(paths.base) == {"model/weights"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"name": "../../etc"}', '{"name": ""}', '{"name": 1.5}', "\x00", "[" * 5000]
)
def test_a_name_that_is_none_leads_nowhere_else(paths: JobPaths, text: str) -> None:
    (paths.base / ".fastfuse-run").write_text(text)
    fill(paths.base, "model/weights")
    assert put_aside(paths, "job", keeps=False) == paths.base / "runs" / "earlier"
    assert files(paths.base) == {"runs/earlier/model/weights"}


def test_a_fifo_in_the_place_of_the_note_is_not_waited_for(paths: JobPaths) -> None:
    os.mkfifo(paths.base / ".fastfuse-run")
    fill(paths.base, "model/weights")
    assert put_aside(paths, "job", keeps=False) == paths.base / "runs" / "earlier"
    assert (paths.base / ".fastfuse-run").is_file()


def test_links_are_moved_and_not_followed(paths: JobPaths, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    fill(elsewhere, "mine")
    put_aside(paths, "job-1", keeps=False)
    paths.data.mkdir(parents=True)
    (paths.data / "train").symlink_to(elsewhere)
    assert put_aside(paths, "job-2", keeps=False) == paths.base / "runs" / "job-1"
    assert os.readlink(paths.base / "runs/job-1/input/data/train") == str(elsewhere)
    assert files(elsewhere) == {"mine"}


def test_a_file_in_the_place_of_a_directory_is_moved(paths: JobPaths) -> None:
    put_aside(paths, "job-1", keeps=False)
    fill(paths.base, "model")
    assert put_aside(paths, "job-2", keeps=False) == paths.base / "runs" / "job-1"
    assert files(paths.base) == {"runs/job-1/model"}


def test_nothing_is_written_behind_links_in_the_base(paths: JobPaths, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    put_aside(paths, "job-1", keeps=False)
    fill(paths.base, "model/weights")
    (paths.base / "runs").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        put_aside(paths, "job-2", keeps=False)
    assert files(elsewhere) == set()
    assert (paths.base / "model/weights").exists()


def test_code_that_was_fetched_for_the_earlier_run_goes_with_it(paths: JobPaths) -> None:
    paths.code.mkdir(parents=True)
    (paths.code / "train.py").write_text("of an image")
    assert put_aside(paths, "job-1", keeps=False, fetches_code=True) is None
    assert put_aside(paths, "job-2", keeps=False) is None
    aside = put_aside(paths, "job-3", keeps=False, fetches_code=True)
    assert aside is not None
    assert (aside / "code/train.py").exists()
    assert not paths.code.exists()
    fill(paths.base, "code/saved/1")
    assert put_aside(paths, "job-4", keeps=False, fetches_code=True, synced=[paths.code / "saved"]) is not None
    assert files(paths.base) == {"runs/job-2/code/train.py", "runs/job-3/code/saved/1"}


def test_checkpoints_of_an_earlier_run_go_aside_wherever_it_had_them(paths: JobPaths) -> None:
    places = [paths.base / "state" / "saved", paths.base / "output" / "tensorboard"]
    put_aside(paths, "job-1", keeps=False, synced=places)
    fill(paths.base, "state/saved/1", "state/other", "output/tensorboard/events", "logs/events")
    # The next run has others, in one of which something lies, and would not look where the first had its own.
    assert put_aside(paths, "job-2", keeps=False, synced=[paths.base / "logs"]) == paths.base / "runs" / "job-1"
    moved = {"state/saved/1", "output/tensorboard/events", "logs/events"}
    assert files(paths.base) == {f"runs/job-1/{name}" for name in moved} | {"state/other"}


def test_checkpoints_elsewhere_are_not_taken_for_this_jobs(tmp_path: Path) -> None:
    paths, elsewhere = JobPaths(tmp_path / "base"), tmp_path / "elsewhere"
    assert put_aside(paths, "job-1", keeps=False, synced=[elsewhere]) is None
    fill(elsewhere, "1")
    with pytest.raises(ConfigurationError, match="elsewhere has files, and a job begins without any"):
        put_aside(paths, "job-2", keeps=False, synced=[elsewhere])
    assert put_aside(paths, "job-2", keeps=True, synced=[elsewhere]) is None
    assert files(elsewhere) == {"1"}
    # One that cannot be looked at is no file of an earlier run; making it says what is wrong.
    assert put_aside(paths, "job-3", keeps=False, synced=[tmp_path / ("x" * 300)]) is None


def test_a_note_leads_nowhere_out_of_the_base_directory(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path / "base")
    fill(tmp_path, "outside/1", "base/model/weights")
    (paths.base / ".fastfuse-run").write_text('{"name": "a", "synced": ["../outside", "/etc", "", ".", "model/../.."]}')
    assert put_aside(paths, "job-2", keeps=False) == paths.base / "runs" / "a"
    assert files(tmp_path / "outside") == {"1"}
