"""The reference pages, made from the code: `python -m docs.reference` writes docs/reference/*.md.

Owns nothing. What it reads are the docstrings that stand beside what they describe, so that a page cannot say what the code
does not; tests/docs/test_reference.py asks for the pages to be those that it would write.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec

import sockd
from docs import proofs_page
from sockd.base.config import Config
from sockd.base.errors import FunctionFailed, InvalidEvent, SockdError
from sockd.client.cli.main import COMMANDS
from sockd.client.console.output import EXIT_CODES
from sockd.functions.code.function_config import (
    BOUNDS,
    INITSCRIPT_BOUNDS,
    FunctionConfig,
    FunctionPackages,
    InitscriptConfig,
)
from sockd.functions.code.service_config import SERVICE_BOUNDS, ServiceConfig
from sockd.http.aws.routes import TABLE
from sockd.http.server.messages import refusals
from sockd.images.agent_keeper.fuse_mount import ENDS
from sockd.isolation.roots.python_variables import VARIABLES, Handling, PythonVariable
from sockd.linux.erofs.mounting import IMAGES
from sockd.linux.ways import TABLE as FEATURES
from sockd_zygote.messages.errors import ERROR_TYPES, NotHttp, StartupFailed

PAGES = Path(__file__).with_name("reference")
ERRORS_AS_JSON = """
    With `--json`, stdout has the result as JSON and nothing else, and an error is one object in one line on stderr:
    `{"error", "why", "fix", "exit_code"}`, all of them always there, `why` and `fix` perhaps empty. `sockd invoke --json`
    prints its object on stdout for a function that failed, too, with the function's own error as `body`. NO_COLOR switches
    off colours and styles on every stream. `sockd --version` prints the version."""
_MADE = "<!-- Made by `make docs` from the code. -->\n"


def pages() -> dict[str, str]:
    """Each page's file name and text."""
    made = {"cli.md": cli(), "configuration.md": configuration(), "function.md": function(), "errors.md": errors()}
    made |= {"python-variables.md": python_variables(), "kernels.md": kernels(), "proofs.md": proofs_page.page()}
    return {name: _MADE + text for name, text in {**made, "lambda-api.md": lambda_api()}.items()}


# -- the pages


def cli() -> str:
    """Every command. Laid out here, as click's own help changes with its version."""
    text = "# Commands\n\n| exit status | |\n|---|---|\n"
    text += "".join(f"| {status} | {meaning} |\n" for status, meaning in EXIT_CODES.items())
    text += f"\n{inspect.cleandoc(ERRORS_AS_JSON)}\n"
    for name, (module, _) in COMMANDS.items():
        text += "".join(_command(getattr(import_module(module), name.replace("-", "_")), f"sockd {name}"))
    return text


def _command(command: click.Command, path: str) -> Iterator[str]:
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    usage = " ".join([path, *arguments])
    yield f"\n## {usage}\n\n{inspect.cleandoc(command.help or command.short_help or '')}\n"
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        rows = "\n".join(map(_row, options))
        yield f"\n| option | |\n|---|---|\n{rows}\n"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command(inner, f"{path} {name}")


def _argument(argument: click.Argument) -> str:
    name = (argument.metavar or argument.human_readable_name.upper()) + ("..." if argument.nargs < 0 else "")
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _row(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    shown = f" Default: {option.default}." if option.show_default is True and not option.is_flag else ""
    return f"| `{_spelling(option)}` | {text}{shown} |"


def _spelling(option: click.Option) -> str:
    spelled = ", ".join(option.opts) + ("".join(f" / {each}" for each in option.secondary_opts))
    if option.is_flag or option.count:
        return spelled
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    value = option.metavar or "|".join(map(str, choices)) or option.type.name.upper()
    return f"{spelled} {value}".replace("|", "\\|")  # a table's own mark


def configuration() -> str:
    """The worker's configuration file."""
    text = "# The worker's configuration\n\nTOML, given as `sockd up --config FILE`. An unknown key is an error at start.\n"
    text += _table(Config, only_plain=True)
    for field in msgspec.structs.fields(Config):
        if inspect.isclass(field.type) and issubclass(field.type, msgspec.Struct):
            text += f"\n## [{field.encode_name}]\n\n{inspect.getdoc(field.type)}\n{_table(field.type)}"
    return text


AREAS = tuple(f"sockd.{area}" for area in "events functions http images isolation observe starts".split())


def function() -> str:
    """`sockd.toml`."""
    text = "# `sockd.toml`\n\nThe settings of a function, a file next to its code; every key is optional.\n"
    text += _table(
        FunctionConfig,
        bounds=BOUNDS,
        leave_out=("aws", "initscript", "packages", "service", "secrets", "sealed", "deployer", "by_command"),
    )
    text += f"\n## [service]\n\n{inspect.getdoc(ServiceConfig)}\n{_table(ServiceConfig, bounds=SERVICE_BOUNDS)}"
    text += f"\n## [packages]\n\n{inspect.getdoc(FunctionPackages)}\n{_table(FunctionPackages)}"
    return f"{text}\n## [initscript]\n\n{inspect.getdoc(InitscriptConfig)}\n{_table(InitscriptConfig, bounds=INITSCRIPT_BOUNDS)}"


REPORTED = {
    "Runtime.AfterRestoreError": "A hook of `register_after_restore` raised in a start from the function's snapshot.",
    "Runtime.BeforeSnapshotError": "A hook of `register_before_snapshot` raised; the version has no snapshot.",
    "Runtime.InvalidEntrypoint": "The entry point of an image, or a bootstrap, does not exist or is no program of this machine.",
    "Runtime.InvalidWorkingDir": "WORKDIR is not a directory of the image, or may not be entered.",
    "Runtime.InvalidModule": "A WebAssembly module cannot be served, although its deploy compiled it.",
    "Runtime.WasmTrap": "A WebAssembly module trapped; the stack is its own.",
    "Runtime.UnknownReason": "A program behind the Runtime API posted an error without a type.",
    "Service.PortInUse": "A service's program ended, as a process of the host had taken the port that its start was granted.",
    "WebServer.NoAnswer": "The image's web server closed the connection, broke its answer off or sent what is not HTTP.",
    "WebServer.NotReady": "The image's web server did not answer within `init_timeout_s`; the message has port, path and status.",
    "WebServer.PortInUse": "On the host's network, another process has the port of the image's web server.",
}
"""Types that the runtime in a sandbox reports without a class of their own; tests/docs/test_reference.py finds one that is
missing."""
OTHER_NAMES = """
The reason of a dead letter is not an `errorType`: `RetriesExhausted`, `EventAgeExceeded`, `WorkerDied` (the worker died
`events.max_deaths` times while the event ran), `FunctionRemoved` or `DeliveryFailed: ...`.
"""


def errors() -> str:
    """Everything that is raised on purpose and that a client can see."""
    for module in pkgutil.walk_packages(sockd.__path__, "sockd."):
        if module.name.startswith(AREAS):
            import_module(module.name)
    rows = {
        (_type_of(each), each.status, _first_line(each))
        for each in _subclasses(SockdError)
        if each.__module__.startswith("sockd.")
    }
    rows |= {*_in_sandboxes(), *_of_refusals()}
    lines = [f"| {name} | {status} | {meaning} |" for name, status, meaning in sorted(rows)]
    head = "# Errors\n\n`errorType` of an answer, its status on `/run`, and what it means.\n\n| | | |\n|---|---|---|\n"
    return head + "\n".join(lines) + "\n" + OTHER_NAMES


def _type_of(error: type[SockdError]) -> str:
    is_handlers = issubclass(error, FunctionFailed) and error.error_type == SockdError.error_type
    return "the exception's class" if is_handlers else f"`{error.error_type}`"


def _in_sandboxes() -> Iterator[tuple[str, int, str]]:
    """What the runtime in a sandbox reports as the function's failure."""
    for name, meaning in REPORTED.items():
        yield f"`{name}`", FunctionFailed.status, meaning
    named: dict[type[BaseException], str] = {
        NotHttp: NotHttp.__name__,
        StartupFailed: StartupFailed.__name__,
        **ERROR_TYPES,
    }
    for error, name in named.items():
        if name != InvalidEvent.error_type:  # the worker has a class of this name
            yield f"`{name}`", FunctionFailed.status, _first_line(error)


def _of_refusals() -> Iterator[tuple[str, int, str]]:
    """What is refused before the worker has read the request."""
    for each in vars(refusals).values():
        if isinstance(each, refusals.Refusal):
            yield f"`{each.error_type}`", each.status, f"Refused early, without a request id: {each.message}."


ABOUT_VARIABLES = """
    Each variable of CPython 3.11 to 3.14 and of its loader, and what becomes of it in a function that is forked from a Zygote.
    Programs (`runtime = "provided"`, programs of images, interpreters that a function starts) get all variables, and obey them as
    everywhere."""


def python_variables() -> str:
    """What becomes of the interpreter's own variables."""
    text = f"# Python's environment variables\n\n{inspect.cleandoc(ABOUT_VARIABLES)}\n"
    for handling in Handling:
        title, _, why = handling.value.partition(": ")
        text += (
            f"\n## {title}\n\n" + (f"{why[:1].upper()}{why[1:]}.\n\n" if why else "") + "| variable | |\n|---|---|\n"
        )
        text += "".join(_variable_row(each) for each in VARIABLES if each.handling is handling)
    return text


def _variable_row(each: PythonVariable) -> str:
    since = f", from 3.{each.since} on" if each.since > 11 else ""
    images = "; handlers in images are refused another value than their image's" if each.is_refused_in_images else ""
    instead = f". Instead: {each.instead}" if each.instead else ""
    return f"| `{each.name}` | {each.effect}{since}{images}{instead} |\n"


ABOUT_KERNELS = """
    What a worker has in one way on newer kernels and in another on older ones. It tries each way at its start and takes the
    first that works; `sockd doctor` shows which, and `sockd status` all but the last. `sandbox.kernel` takes the ways of an older
    kernel."""


def kernels() -> str:
    """What older kernels have instead of what they lack."""
    text = f"# Ways of older kernels\n\n{inspect.cleandoc(ABOUT_KERNELS)}\n\n"
    text += "| feature | way | from Linux | cost |\n|---|---|---|---|\n"
    for title, ways in (*FEATURES.values(), IMAGES, ENDS):
        for way in ways:
            text += f"| {title} | {way.words} | {way.since[0]}.{way.since[1]} | {way.cost or '–'} |\n"
    return text


def lambda_api() -> str:
    """The operations of AWS's API."""
    lines = [
        f"| {operation.value} | `{method} {path.replace('{}', '{name}')}` |" for method, path, operation, _ in TABLE
    ]
    return "# AWS Lambda API\n\n| operation | request |\n|---|---|\n" + "\n".join(sorted(lines)) + "\n"


# -- what they are made of


def _table(
    struct: type[msgspec.Struct],
    *,
    bounds: dict[str, tuple[float, float]] | None = None,
    only_plain: bool = False,
    leave_out: tuple[str, ...] = (),
) -> str:
    """The fields of a struct: name, default, bounds, and the text that stands below each in its source."""
    docs = _field_docs(struct)
    rows = []
    for field in msgspec.structs.fields(struct):
        is_table = inspect.isclass(field.type) and issubclass(field.type, msgspec.Struct)
        if field.encode_name in leave_out or (only_plain and is_table):
            continue
        least_and_most = (bounds or {}).get(field.name)
        span = f" ({least_and_most[0]} to {least_and_most[1]})" if least_and_most else ""
        rows.append(f"| `{field.encode_name}` | `{_default(field)}` | {docs[field.name]}{span} |")
    return "\n| key | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None:
        return "none"
    return msgspec.json.encode(value).decode()


def _field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The string that follows each field, of the class and those that it inherits from. Raises KeyError in `_table`: none."""
    docs: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        if not issubclass(each, msgspec.Struct) or each is msgspec.Struct:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                assert isinstance(before.target, ast.Name)
                docs[before.target.id] = " ".join(str(after.value.value).split())
    return docs


def _first_line(error: type[BaseException]) -> str:
    paragraph = (inspect.getdoc(error) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


def _subclasses(error: type[SockdError]) -> Iterator[type[SockdError]]:
    yield error
    for each in error.__subclasses__():
        yield from _subclasses(each)


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for page, content in pages().items():
        (PAGES / page).write_text(content)
