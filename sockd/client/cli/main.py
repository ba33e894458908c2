"""`sockd`: the commands, found by name and imported when called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module

import click

from sockd import __version__
from sockd.base.printable import one_line
from sockd.client.console.output import INTERRUPTED, JsonFailure, show_uncaught, wants_json

COMMANDS = {
    "up": ("sockd.client.cli.worker.up", "Run a worker in the foreground."),
    "doctor": ("sockd.client.cli.doctor.command", "Check the host, and print how to fix what is missing."),
    "deploy": ("sockd.client.cli.functions.deploy", "Deploy a directory or zip archive as a function."),
    "dev": ("sockd.client.cli.functions.dev", "Deploy a directory each time a file in it is saved."),
    "init": ("sockd.client.cli.functions.init", "Create a small project."),
    "invoke": ("sockd.client.cli.calls.invoke", "Run a function once."),
    "url": ("sockd.client.cli.functions.url", "Show or change the URL of a function."),
    "curl": ("sockd.client.cli.calls.curl", "Send an HTTP request to a function's URL."),
    "events": ("sockd.client.cli.calls.events", "Show and manage asynchronous invocations and dead letters."),
    "schedule": ("sockd.client.cli.functions.schedule", "Run functions on a schedule."),
    "ls": ("sockd.client.cli.functions.functions", "List the functions."),
    "rm": ("sockd.client.cli.functions.functions", "Remove a function."),
    "publish": ("sockd.client.cli.functions.versions", "Publish the last deploy as a numbered version."),
    "versions": ("sockd.client.cli.functions.versions", "List the versions of a function, its aliases and deploys."),
    "alias": ("sockd.client.cli.functions.versions", "Point an alias to a version, or to two by share."),
    "provision": ("sockd.client.cli.functions.versions", "Keep sandboxes of a version initialized."),
    "rollback": ("sockd.client.cli.functions.versions", "Deploy the previous code of a function again."),
    "config": ("sockd.client.cli.functions.config", "Show or change settings of a function without its code."),
    "env": ("sockd.client.cli.functions.env", "Show or change the environment of a function."),
    "secret": ("sockd.client.cli.functions.env", "Manage secrets of functions."),
    "logs": ("sockd.client.cli.observe.logs", "Show a function's output."),
    "keys": ("sockd.client.cli.worker.keys", "Create and revoke keys for clients on other machines."),
    "login": ("sockd.client.cli.worker.login", "Store a key for a worker on another machine."),
    "logout": ("sockd.client.cli.worker.login", "Forget it."),
    "workers": ("sockd.client.cli.cluster.workers", "List the workers of the group."),
    "drain": ("sockd.client.cli.cluster.workers", "Have a proxy in front send this worker no more requests."),
    "cluster": (
        "sockd.client.cli.cluster.cluster",
        "Write the proxy's file for a group, or try a group on one machine.",
    ),
    "cache-node": ("sockd.client.cli.worker.cache_node", "Run a cache node for chunks of container images."),
    "backup": ("sockd.client.cli.worker.backup", "Copy the worker's state, while it runs."),
    "restore": ("sockd.client.cli.worker.restore", "Make a backup a worker's state again."),
    "ps": ("sockd.client.cli.observe.ps", "List the services, and what their programs do."),
    "top": ("sockd.client.cli.observe.top", "Show the busiest functions, live."),
    "status": ("sockd.client.cli.worker.status", "Show the state of the worker."),
    "tree": ("sockd.client.cli.observe.tree", "Show the Zygote tree."),
    "imports": ("sockd.client.cli.observe.imports", "Show the imports of a function and their cost."),
    "trace": ("sockd.client.cli.observe.trace", "Show the waterfall of an invocation."),
    "initscript": ("sockd.client.cli.functions.initscript", "Build, check, run and record initscripts."),
    "packages": ("sockd.client.cli.worker.packages", "List, add and remove installed packages; retry refused ones."),
    "images": ("sockd.client.cli.worker.images", "List, add, inspect and remove container images."),
    "sebs": ("sockd.client.cli.source.sebs", "Run SeBS, the serverless benchmark suite."),
    "s3": ("sockd.client.cli.source.s3", "Run a small S3 server, for development."),
    "bench": ("sockd.client.cli.source.bench", "Run a benchmark."),
    "files": ("sockd.client.cli.source.files", "Print the paths of documentation, systemd unit, benchmarks and tests."),
    "selftest": ("sockd.client.cli.source.selftest", "Attack a private worker, and report the results."),
}
"""The module of each command and its line in the help, so that `sockd --help` imports none."""

GROUPS = {
    "Develop": ("init", "dev", "deploy", "invoke", "curl", "logs", "trace"),
    "Functions": ("ls", "rm", "config", "env", "secret", "url", "schedule", "events"),
    "Versions": ("versions", "publish", "alias", "rollback", "provision"),
    "Worker": ("up", "doctor", "status", "ps", "top", "tree", "imports", "packages", "images", "backup", "restore"),
    "Other machines": ("keys", "login", "logout", "workers", "drain", "cluster", "cache-node"),
    "Rarely needed": ("initscript", "sebs", "s3", "bench", "files", "selftest"),
}
"""The commands as the help shows them; those of a first hour first."""

NO_ARGUMENTS: tuple[type[Exception], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])  # of click 8.2 and later
)


class Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _printable_refusals():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with _printable_refusals():  # of the commands' own arguments, too
                return super().invoke(ctx)
        except click.ClickException as error:
            if wants_json(ctx) or _was_to_be_json(error):
                raise JsonFailure(error) from error
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names], col_max=12)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"no command {args[0]!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="sockd %(version)s", help="Print the version.")
def cli() -> None:
    """A serverless platform for Python: deploy functions and invoke them over HTTP; cold starts take milliseconds."""


def _was_to_be_json(error: click.ClickException) -> bool:
    """Whether --json is among the arguments, when parsing failed before it was recorded."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return ctx is not None and "--json" in sys.argv and any(each.name == "as_json" for each in ctx.command.params)


@contextmanager
def _printable_refusals() -> Iterator[None]:
    """click quotes arguments unescaped, and one may be a file's name."""
    try:
        yield
    except NO_ARGUMENTS:
        raise  # the help
    except click.UsageError as error:
        raise click.UsageError(one_line(error.format_message()), error.ctx) from None


def main() -> None:
    """The entry point; exits with the status of the command."""
    sys.excepthook = show_uncaught
    try:
        status = cli.main(prog_name="sockd", standalone_mode=False)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(status)
