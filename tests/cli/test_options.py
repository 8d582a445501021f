"""Groups of options that a command takes as one argument."""

import inspect
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fastfuse.cli.index_options import origin
from fastfuse.cli.options import LogFormat, logs, takes
from fastfuse.index.origin import IndexOrigin
from fastfuse.log import LogConfig


def pair(left: Annotated[int, typer.Option(envvar="PAIR_LEFT")] = 1, right: int = 2) -> tuple[int, int]:
    return left, right


@takes(both=pair)
def command(word: str, *, loud: bool = False, both: tuple[int, int]) -> int:
    typer.echo(f"{word} {loud} {both}")
    return 0


def shown(*words: str, env: dict[str, str] | None = None) -> str:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, words, env=env)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_a_group_stands_in_the_signature_for_the_argument_named_after_it() -> None:
    assert list(inspect.signature(command).parameters) == ["word", "loud", "left", "right"]


def test_a_command_is_called_with_what_its_group_returns() -> None:
    assert shown("x", "--left", "5", "--loud") == "x True (5, 2)"


def test_an_option_of_a_group_has_its_variable_in_the_environment() -> None:
    assert shown("x", env={"PAIR_LEFT": "7"}) == "x False (7, 2)"


def test_a_log_file_is_found_again_after_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = logs(verbose=True, log_format=LogFormat.JSON, log_file=Path("log"))
    assert made == LogConfig(json=True, verbose=True, file=tmp_path / "log")


def test_each_option_of_the_source_has_its_variable_in_the_environment() -> None:
    app = typer.Typer()

    def command(*, origin: IndexOrigin) -> int:
        typer.echo(origin.view)
        return 0

    app.command()(takes(origin=origin)(command))
    environment = {
        "FASTFUSE_SOURCE_TYPE": "AugmentedManifestFile",
        "FASTFUSE_ATTRIBUTE_NAME": "source-ref class",
        "FASTFUSE_SHARD": "1/2",
        "FASTFUSE_SHARD_BY": "bytes",
    }
    result = CliRunner().invoke(app, [], env=environment)
    assert result.output == 'AugmentedManifestFile "source-ref" "class" part 1/2 by bytes\n'
    options = ["--source-type", "AugmentedManifestFile", "--attribute-name", "b", "--attribute-name", "a b"]
    result = CliRunner().invoke(app, [*options, "--shard", "1/2"])
    assert result.output == 'AugmentedManifestFile "b" "a b" part 1/2 by count\n'
