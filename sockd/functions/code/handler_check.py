"""Whether a handler is in its code, before anything is switched to it: read, never run, in a process of its own.

Owns nothing. The daemon parses no function's source: a text may be made to exhaust the parser. What cannot be decided from the
text, or not within the bounds, is found out where the module is imported, in the sandbox.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code import handler_checker
from sockd.functions.code.code_store import SANDBOX_PATH
from sockd.functions.code.entrypoint import DETECTED_APPS
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.linux.processes.bounded_child import run_bounded

NOT_COMPILED = ("SyntaxError", "IndentationError", "TabError")
ELSEWHERE = '; name another in sockd.toml: handler = "module:function"'
DEADLINE_S = 10.0
MEMORY_BYTES = 512 << 20
MAX_SOURCE_BYTES = 4 << 20
MAX_SAID_BYTES = 500
APP = "app"
"""The web app that a module may have instead of a handler (`sockd_zygote.handlers.entry.load_any`)."""
MAYBE_APPS = frozenset(handler for handler, kind in DETECTED_APPS.items() if kind == "maybe")
"""Handlers that may be missing if there is an app; OpenLambda's `f` may be in every module, which OL_ENTRY_FILE names."""
SAM = ("lambda_handler", "handler")
"""What AWS SAM's app.py has instead of an app."""


def check_handler(code: Path, handler: str, *, has_packages: bool, python: Interpreter = OWN_PYTHON) -> str:
    """The handler, or what the code has instead (`instead_of`). Blocks.

    Args: handler: "module:attr"; has_packages: the module may come from one; python: the interpreter that runs it.

    Raises: BadFunctionConfig, saying what is not there, or where the code does not compile."""
    module, _, name = handler.partition(":")
    path = module.replace(".", "/")
    file = next((each for each in (f"{path}.py", f"{path}/__init__.py") if (code / each).is_file()), None)
    if file is None:
        top = module.partition(".")[0]
        is_elsewhere = has_packages or top in sys.stdlib_module_names or any(code.glob(f"{top}*"))
        if not is_elsewhere:
            raise BadFunctionConfig(f"the handler is {module}.{name}, and the code has no {path}.py")
        return handler
    if (code / file).stat().st_size > MAX_SOURCE_BYTES:
        return handler
    source, shown = code / file, f"{SANDBOX_PATH}/{file}"
    said = _read(source, shown, [name], python)
    others = instead_of(handler)
    if said and others:
        for other in others:
            if not _read(source, shown, [other], python):
                return f"{module}:{other}"
        said = _read(source, shown, [name, *others], python)
    if said:
        raise BadFunctionConfig(
            f"the handler is {module}.{name}, and {said}{'' if any(each in said for each in NOT_COMPILED) else ELSEWHERE}"
        )
    return handler


def instead_of(handler: str) -> list[str]:
    """Return the names that a module may have instead of a detected handler, the likeliest first."""
    if handler == "app:app":
        return list(SAM)
    return [APP] if handler.endswith(":f") or handler in MAYBE_APPS else []


def _read(source: Path, shown: str, names: list[str], python: Interpreter) -> str:
    command = [python.executable, "-I", "-S", handler_checker.__file__, shown, *names]
    with source.open("rb") as text, open(os.memfd_create("said", os.MFD_CLOEXEC), "w+b") as said:
        status = run_bounded(
            command, memory_bytes=MEMORY_BYTES, deadline_s=DEADLINE_S, stdin=text.fileno(), stdout=said.fileno()
        )
        said.seek(0)
        return said.read(MAX_SAID_BYTES).decode(errors="replace") if status == 0 else ""
