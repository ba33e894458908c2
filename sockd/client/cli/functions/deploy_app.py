"""`sockd deploy FILE.py`: import a file and deploy its decorated functions."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from sockd.client.console.client import chosen_worker
from sockd.client.console.output import UNREACHABLE, USAGE, Failure, echo, print_json, progress, say
from sockd.client.python.errors import DeployFailed, NoWorker
from sockd.client.python.remote_function import RemoteFunction, found
from sockd.client.python.workers import RemoteWorker


def deploy_app(file: Path, options: Sequence[str], state_dir: Path, as_json: bool, *, force: bool, check: bool) -> None:
    """Args: options: that were given besides, none of which can be meant for all functions; force: also what was deployed
    from another source; check: whether each new version is started once before. Raises: Failure."""
    if options:
        raise Failure(
            f"--{options[0].removesuffix('_mb').removesuffix('_s')} does not apply to a file of decorated functions",
            fix="set it in @sockd.function(...)",
            exit_code=USAGE,
        )
    os.environ["SOCKD_STATE_DIR"] = str(state_dir)
    worker = chosen_worker()
    functions = decorated(file)
    deployed = []
    with progress(f"packing {file}") as show:
        for function in functions:
            show(f"deploying {function.name}")
            deployed.append(_deploy(function, worker, force=force, check=check))
    if as_json:
        print_json(deployed)
        return
    for each in deployed:
        packages = len(each["packages"])
        echo(
            f"{each['name']}: version {each['version_number']} ({each['version'][:12]}), "
            f"{packages} package{'' if packages == 1 else 's'}"
        )
        for note in each["notes"]:
            say(f"note: {note}")


def decorated(file: Path) -> list[RemoteFunction[..., Any]]:
    """Import a file and return its decorated functions. Raises: Failure."""
    sys.path.insert(0, str(file.resolve().parent))
    try:
        importlib.import_module(file.stem)
    except Exception as error:
        frames = traceback.format_exception_only(error)
        raise Failure(
            f"{file} cannot be imported",
            why="".join(frames).strip(),
            fix="import packages that only a function needs inside that function",
        ) from None
    functions = [each for each in found if each.local.__module__ == file.stem]
    if not functions:
        what = f"{file} has no function with @sockd.function"
        why = "a file is deployed for its decorated functions, a directory for its handler"
        raise Failure(what, why=why, fix=f"sockd deploy {quote(str(file.parent))}", exit_code=USAGE)
    names = [each.name for each in functions]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Failure(f"{file} has two functions named {min(twice)}", fix="@sockd.function(name=...)", exit_code=USAGE)
    return functions


def _deploy(
    function: RemoteFunction[..., Any], worker: RemoteWorker | None, *, force: bool, check: bool
) -> dict[str, Any]:
    try:
        return function.deploy(force=force, worker=worker, check=check)
    except DeployFailed as error:
        raise Failure(f"{function.name} cannot be deployed", why=str(error)) from None
    except NoWorker as error:
        raise Failure("no worker answers", why=str(error), fix="sudo sockd up", exit_code=UNREACHABLE) from None
