"""Fuzzes the parsers of what others send, guided by coverage (atheris, which is libFuzzer): ``make fuzz``.

Each target runs in a process of its own, which ends with the first finding: an error that is not allowed, 10 s for one
input, or 1 GiB of memory. The finding lies in ``build/fuzz/NAME/``, beside the inputs that reached new code; put it
into ``tests/fuzz/corpus/NAME/`` under a telling name once it is repaired.
"""

import argparse
import random
import subprocess
import sys
from pathlib import Path

from tests.fuzz.mutations import mutant
from tests.fuzz.targets import CORPUS, NAMES, seeds, target

BUILD = Path("build/fuzz")
TIMEOUT_S = 10
MAX_MEMORY_MB = 1024
MAX_INPUT_BYTES = 1 << 14


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the parsers of hostile input.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = set(asked.targets) - set(NAMES)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if asked.in_this_process:
        _fuzz(asked.targets[0], asked.seconds)
    found = [name for name in asked.targets or NAMES if _run(name, asked.seconds)]
    print(f"findings: {', '.join(found)}; see {BUILD}" if found else "no finding")
    return bool(found)


def _run(name: str, seconds: int) -> int:
    print(f"== {name}: {seconds} s", flush=True)
    command = (sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds), "--in-this-process")
    return subprocess.run(command, check=False).returncode


def _fuzz(name: str, seconds: int) -> None:
    import atheris

    # Everything of the package that the target imports counts what it ran.
    with atheris.instrument_imports(include=["fastfuse"]):
        module = target(name)
    place = BUILD / name
    (place / "reached").mkdir(parents=True, exist_ok=True)
    words = place / "words"
    words.write_text("".join(f'"{_escaped(token)}"\n' for token in module.TOKENS))
    settings = {
        "max_total_time": seconds,
        "timeout": TIMEOUT_S,
        "rss_limit_mb": MAX_MEMORY_MB,
        "max_len": MAX_INPUT_BYTES,
        "dict": words,
        "artifact_prefix": f"{place}/",
        "print_final_stats": 1,
        "verbosity": 0,
    }
    options = [f"-{option}={value}" for option, value in settings.items()]
    inputs = list(seeds(name).values())

    def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
        """Mutate `data` as libFuzzer does, by bytes and what comparisons wanted, or by words of the format."""
        generator = random.Random(seed)
        if generator.random() < 0.5:
            mutated: bytes = atheris.Mutate(data, max_bytes)
            return mutated
        return mutant(data, generator, inputs, module.TOKENS)[:max_bytes]

    folders = [str(place / "reached"), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *options, *folders], module.try_one, custom_mutator=mutate)
    atheris.Fuzz()


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    sys.exit(main())
