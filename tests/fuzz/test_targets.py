"""Every kept input of every fuzzer, and some mutants of them, do no more harm than the errors that are allowed.

`make fuzz` looks for new ones. A finding becomes an input in `corpus/`.
"""

import shutil
from itertools import islice

import pytest

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import NAMES, seeds, target

MUTANTS = 500
SEED = 20


@pytest.mark.parametrize("name", NAMES)
def test_no_kept_input_does_harm(name: str) -> None:
    for data in seeds(name).values():
        target(name).try_one(data)
    if name == "heads" and not shutil.which("gcc"):
        pytest.skip("threads' parser has tried none: there is no gcc")


@pytest.mark.parametrize("name", NAMES)
def test_no_mutant_does_harm(name: str) -> None:
    module = target(name)
    for data in islice(mutated(list(seeds(name).values()), module.TOKENS, SEED), MUTANTS):
        try:
            module.try_one(data)
        except Exception as error:
            error.add_note(f"the input of tests/fuzz/{name}.py was {data!r}")
            raise
