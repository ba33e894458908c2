"""Whether a handler is in its code, before anything is switched to it: read, never run, in a process of its own.

Owns the process. The daemon parses no function's source: a text may be made to exhaust the parser. What cannot be told from the
text, or not within the bounds, is found out where the module is imported, in the sandbox.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sockd.code import handler_checker
from sockd.code.code_store import SANDBOX_PATH
from sockd.images.interpreter import OWN_PYTHON, Interpreter
from sockd.plain.errors import BadFunctionConfig

ELSEWHERE = '; name another in sockd.toml: handler = "module:function"'
DEADLINE_S = 10.0
MEMORY_BYTES = 512 << 20
MAX_SOURCE_BYTES = 4 << 20
FALLBACK = {"f:f": ["f", "app"], "main:handler": ["handler", "app"]}
"""Handlers that may be web apps instead (`sockd_zygote.entry.load_any`)."""


def check_handler(code: Path, handler: str, *, has_packages: bool, python: Interpreter = OWN_PYTHON) -> None:
    """Blocks. Args: handler: "module:attr"; has_packages: the module may come from one; python: the interpreter that runs it.

    Raises: BadFunctionConfig, saying what is not there, or where the code does not compile."""
    module, _, name = handler.partition(":")
    path = module.replace(".", "/")
    file = next((each for each in (f"{path}.py", f"{path}/__init__.py") if (code / each).is_file()), None)
    if file is None:
        top = module.partition(".")[0]
        is_elsewhere = has_packages or top in sys.stdlib_module_names or any(code.glob(f"{top}*"))
        if not is_elsewhere:
            raise BadFunctionConfig(f"the handler is {module}.{name}, and the code has no {path}.py")
        return
    if (code / file).stat().st_size > MAX_SOURCE_BYTES:
        return
    said = _read((code / file).read_bytes(), f"{SANDBOX_PATH}/{file}", FALLBACK.get(handler, [name]), python)
    if said:
        raise BadFunctionConfig(
            f"the handler is {module}.{name}, and {said}{'' if SyntaxError.__name__ in said else ELSEWHERE}"
        )


def _read(source: bytes, shown: str, names: list[str], python: Interpreter) -> str:
    process = subprocess.Popen(
        [python.executable, "-I", "-S", handler_checker.__file__, shown, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        try:
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            said, _ = process.communicate(source, DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return ""
        except BaseException:
            process.kill()
            raise
    return said.decode(errors="replace")[:500] if process.returncode == 0 else ""
