"""The example whose library the tests have is run here, all of them by `make examples`."""

import sys
from pathlib import Path

import pytest

from tests.docs.examples import EXAMPLES, run_examples


def test_there_is_an_example_for_each_library() -> None:
    assert [*EXAMPLES] == ["PyTorch", "TensorFlow", "webdataset", "Hugging Face datasets"]
    for text in EXAMPLES.values():
        compile(text, "example", "exec")


@pytest.mark.fuse
def test_the_example_of_webdataset_reads_every_sample_twice(tmp_path: Path) -> None:
    assert run_examples(sys.executable, ["webdataset"], tmp_path) == {"webdataset": "64 samples"}
