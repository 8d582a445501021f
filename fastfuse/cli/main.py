"""The command line: options to settings, settings to the command's module, errors to one line and an exit code."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.cli import deploy_commands, fstab, messages, mounted, options, source_commands, startup
from fastfuse.cli import run_command as cli_run
from fastfuse.cli.config import mount_settings
from fastfuse.cli.help_pages import HELP_OPTIONS, Command, Group
from fastfuse.errors import ConfigurationError, FastfuseError
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from fastfuse.log import LogConfig
from fastfuse.version import VERSION

_logger = logging.getLogger(__name__)

# The commands' own modules are imported where they are called: `--help` and a mistyped option should answer at once,
# and a daemon is forked before anything that starts a thread is loaded.

app = typer.Typer(
    name="fastfuse",
    add_completion=False,
    rich_markup_mode=None,
    cls=Group,
    context_settings={"help_option_names": HELP_OPTIONS},
    epilog="Exit codes: 0 clean, 1 anything else, 2 usage or configuration, 3 credentials or access, "
    "4 source not found or empty, 5 mount failed, 6 a job's outputs are not all in S3.",
)


@app.callback(invoke_without_command=True)
def fastfuse(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """Mount an S3 prefix read-only and stream it to training jobs."""
    if version:
        messages.say(f"fastfuse {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ConfigurationError.exit_code)
    return 0


@app.command(
    cls=fstab.MountCommand,
    epilog="Options can be set in the environment, under the name that is shown with them. In fstab: "
    "s3://BUCKET/PREFIX /mnt/data fuse.fastfuse ro,_netdev,allow_other,region=eu-west-1 0 0",
)
@options.takes(settings=mount_settings, logs=options.logs)
def mount(
    *,
    background: Annotated[
        bool, typer.Option("--daemon", help="Return once the mount is ready and serve it from the background.")
    ] = False,
    settings: MountSettings,
    logs: LogConfig,
) -> int:
    """Mount an S3 prefix read-only.

    It is shown as it is listed now, and served until interrupted or unmounted.
    """
    if background:
        return _serve_in_background(settings, logs)
    # Not under --daemon: a manager that waits to be notified does not expect its main process to fork.
    usec = os.environ.get("WATCHDOG_USEC", "")
    settings = replace(
        settings,
        notify_socket=os.environ.get("NOTIFY_SOCKET"),
        # Its sender is the service manager, so what is no number is none of its.
        watchdog_s=int(usec) / 1e6 if usec.isascii() and usec.isdigit() else None,
    )
    log.configure(logs)
    return _serve(settings, None)


# Whatever follows the command's name is the command's, options included.
app.command(cls=Command, epilog=cli_run.EPILOG, context_settings={"allow_interspersed_args": False})(cli_run.run)


def _serve(settings: MountSettings, ready: Callable[[int], None] | None) -> int:
    with startup.loading():
        from fastfuse.filesystem import supervisor
    try:
        return supervisor.run(settings, ready=ready)
    except BrokenPipeError as error:
        # typer takes it for the end of whoever reads our output, and exits without a word.
        raise RuntimeError(f"a pipe of the mount broke: {error}") from error


def _serve_in_background(settings: MountSettings, logs: LogConfig) -> int:
    child = startup.fork()
    settings = replace(settings, is_temporary=bool(os.environ.pop(startup.IS_TEMPORARY, "")))
    try:
        heard = log.configure(logs, syslog=log.SYSLOG)
        child.relay_logs(log.formatter(logs))
        if not heard:
            _logger.warning("there is no syslog here: once mounted, nothing is logged (--log-file keeps the lines)")
        return _serve(settings, lambda _: child.ready())
    except FastfuseError as error:
        child.fail(log.command_text(str(error), hint=error.hint, exit_code=error.exit_code, json=logs.json))
        _logger.error("%s", error)
        return error.exit_code


for _command in (
    *(mounted.unmount, mounted.refresh, mounted.status, mounted.stats, mounted.top, mounted.trace, mounted.log_level),
    *(mounted.hint, mounted.fuse_helper, source_commands.index, source_commands.advise, source_commands.doctor),
    *(deploy_commands.install, mounted.report, deploy_commands.deploy, source_commands.warm, source_commands.cache),
    source_commands.demo,
):
    app.command(cls=Command)(_command)


@app.command(cls=Command)
def version() -> int:
    """Print the version."""
    messages.say(f"fastfuse {VERSION}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. An error is one line on stderr."""
    # A command that fastfuse runs gets the environment as it was.
    given = dict(os.environ)
    startup.prepare()
    startup.open_standard_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    words = fstab.helper_arguments(arguments)
    if "_FASTFUSE_COMPLETE" in os.environ:  # a shell asks (cli.help_files)
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # typer knows the shells from here on
    commands = typer.main.get_group(app)
    known = messages.variables_of(commands)
    messages.warn_of_unknown_variables(commands, known, words)
    try:
        if fstab.is_there(arguments):
            return 0
        return int(commands.main(words, prog_name="fastfuse", standalone_mode=False, obj=given))
    except FastfuseError as error:
        message, hint, exit_code = str(error), error.hint, error.exit_code
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "fastfuse")
        message, hint = messages.usage_message(error, command)
        exit_code = ConfigurationError.exit_code
    except FileNotFoundError:
        if startup.has_working_directory():
            raise
        message, hint = "the working directory was deleted, and a relative path begins there", "cd to another one"
        exit_code = ConfigurationError.exit_code
    except BaseExceptionGroup as group:
        # Ctrl-C in a run of trio raises a group, and typer only knows a bare KeyboardInterrupt.
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        return messages.INTERRUPTED
    messages.fail(message, hint=hint, exit_code=exit_code, words=words, known=known)
    return exit_code
