import pytest

from bench.fio import files_of


def test_a_job_file_names_its_files_and_their_size() -> None:
    text = "; a comment\n[global]\nfilename=data\nrw=read\ntime_based\nsize=10G\n"
    text += "[one]\nbs=4k\n[two]\nfilename=x:y\nsize=1m\n"
    assert files_of(text) == {"data": 10 << 30, "x": 1 << 20, "y": 1 << 20}


def test_without_a_name_files_are_named_as_fio_does() -> None:
    text = "[global]\nsize=128k\n[job]\nnumjobs=2\nnrfiles=2\n"
    assert files_of(text) == dict.fromkeys(["job.0.0", "job.0.1", "job.1.0", "job.1.1"], 128 << 10)


def test_a_job_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="job scan says no size"):
        files_of("[scan]\nfilename=x\n")
