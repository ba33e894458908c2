"""The entry point of a function: which callable of which module is its handler.

Pure but for looking which files exist. The daemon never parses a function's source: it is a stranger's text, and the
parser is C. So a convention is recognised by its file alone, and whether the callable is really there is found out
where the module is imported, in the sandbox.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from sockd.base.errors import BadArchive, BadFunctionConfig
from sockd.functions.code.archive import checked_path

SUFFIX = ".wasm"
HANDLER_CHARS = 128
"""AWS's limit of the handler's name."""

OPENLAMBDA = "f:f"
CONVENTIONS = (
    ("lambda_function.py", "lambda_function:lambda_handler"),  # AWS Lambda's console and its templates
    ("handler.py", "handler:handler"),  # or handler:app
    ("main.py", "main:handler"),  # or main:app, as in FastAPI's examples
    ("function/function.py", "function.function:handler"),  # SeBS: a package, for its `from . import storage`
    ("f.py", OPENLAMBDA),  # OpenLambda; its f may be missing and its app be there
    ("app.py", "app:app"),  # Flask's and uvicorn's examples; or AWS SAM's app:lambda_handler, app:handler
)
"""What is looked for, in order: the first file that exists decides."""
DETECTED_APPS = {
    **dict.fromkeys((found for _, found in CONVENTIONS[:4]), ""),
    "handler:handler": "maybe",
    "main:handler": "maybe",
    "f:f": "maybe",
    "app:app": "auto",
}
"""Which of what is detected are web apps (`sockd_zygote.handlers.app_kinds.open_app`)."""

WRITTEN = re.compile(r"(?P<module>[\w-]+(?:[./][\w-]+)*?)(?P<suffix>\.py)?(?P<mark>[:.])(?P<attr>[^\W\d]\w*)")
"""module:attr, AWS's module.attr (also dir/module.attr), and file.py:attr."""


WASM = "wasm"
"""The runtime of functions that are WebAssembly modules."""
BOOTSTRAP = "bootstrap"
AWSLAMBDARIC = "awslambdaric"
"""Which program speaks to the Runtime API for a function: the code's own, or AWS's client, from the function's packages."""


def provided(code: Path, runtime: str | None) -> str:
    """BOOTSTRAP or AWSLAMBDARIC for a function that is a program of its own; empty for one that is a Python handler.

    Args: runtime: what the function's settings say; None: an executable bootstrap at the top of the code decides."""
    is_bootstrap = bool(_mode_of_file(code, BOOTSTRAP) & 0o111)
    if runtime in ("python", WASM) or (runtime is None and not is_bootstrap):
        return ""
    return BOOTSTRAP if is_bootstrap else AWSLAMBDARIC


def entry_point(code: Path, handler: str | None, runtime: str | None = None) -> str:
    """The entry point of a code tree as "module:attr"; for a function that is a program, the value of `_HANDLER`; for one that is
    WebAssembly, the path of the module.

    Args:
        code: the tree.
        handler: what the function's settings say; it wins, and its file is not looked for, as its module may come from
            a package.
    Raises: BadFunctionConfig, saying what was looked for."""
    if runtime == WASM:
        return _module(code, handler)
    program = provided(code, runtime)
    if program == AWSLAMBDARIC and handler is None:
        raise BadFunctionConfig(
            'runtime = "provided" needs an executable file bootstrap at the top of the code, or a handler for awslambdaric '
            '(handler = "module.function" in sockd.toml)'
        )
    if program:
        return handler if handler is not None else BOOTSTRAP
    return parse_handler(handler) if handler is not None else _detect(code)


def service_command(code: Path, command: list[str] | None) -> list[str]:
    """The words that run the service of a code tree: its command, or else its bootstrap. Raises: BadFunctionConfig."""
    if command is not None:
        return command
    if _mode_of_file(code, BOOTSTRAP) & 0o111:
        return [f"./{BOOTSTRAP}"]
    raise BadFunctionConfig(
        'kind = "service" needs a program: command = ["./server"] in sockd.toml, or an executable file bootstrap at the top '
        "of the code"
    )


def parse_handler(handler: str) -> str:
    """A handler as written in settings, as "module:attr". Raises BadFunctionConfig."""
    match = WRITTEN.fullmatch(handler) if len(handler) <= HANDLER_CHARS else None
    if match is None or (match["suffix"] and match["mark"] == "."):
        raise BadFunctionConfig(
            f"handler = {handler[:HANDLER_CHARS]!r}: must be 'module:function' or 'module.function', "
            f"at most {HANDLER_CHARS} characters"
        )
    return f"{match['module'].replace('/', '.')}:{match['attr']}"


def detected(code: Path) -> str:
    """The entry point that a convention finds; empty: none does."""
    return next((found for file, found in CONVENTIONS if _mode_of_file(code, file)), "")


def _detect(code: Path) -> str:
    if found := detected(code):
        return found
    looked_for = ", ".join(f"{file} ({found.rpartition(':')[2]})" for file, found in CONVENTIONS)
    raise BadFunctionConfig(
        f"no handler found; looked for {looked_for}, and for a web app called app in handler.py, main.py and f.py. "
        'Name yours in sockd.toml: handler = "module:function"'
    )


def _module(code: Path, handler: str | None) -> str:
    """The path of a WebAssembly module in the code. Raises: BadFunctionConfig."""
    if handler is not None:
        try:
            path = checked_path(handler)
        except BadArchive:
            path = ""
        if path != handler or not path.endswith(SUFFIX) or len(path) > HANDLER_CHARS or not _mode_of_file(code, path):
            raise BadFunctionConfig(
                f'handler = {handler[:HANDLER_CHARS]!r}: with runtime = "wasm" it must be a file of the code, FILE.wasm'
            )
        return path
    found = sorted(path.name for path in code.glob(f"*{SUFFIX}") if _mode_of_file(code, path.name))
    if len(found) != 1:
        there = f"there are {', '.join(found)}" if found else "there is none"
        raise BadFunctionConfig(
            f'runtime = "wasm" needs one FILE.wasm at the top of the code, and {there}: name yours (handler = "FILE.wasm")'
        )
    return found[0]


def _mode_of_file(code: Path, path: str) -> int:
    """The mode of a regular file of the code; 0: there is none."""
    try:
        mode = os.lstat(f"{code}/{path}").st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return mode if stat.S_ISREG(mode) else 0
