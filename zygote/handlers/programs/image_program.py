"""The program of an image: its entry point, started as the image and the function's settings say.

INIT names the command and the working directory; its variables are all that the program is given.
"""

from __future__ import annotations

import errno
import os
import subprocess

from sockd_zygote.messages import errors

INVALID_ENTRYPOINT, INVALID_DIRECTORY = "Runtime.InvalidEntrypoint", "Runtime.InvalidWorkingDir"
"""AWS's names."""
SCRIPT_BYTES = 256
"""Longest first line of a script that is read for its interpreter, as the kernel reads it."""
ELF = b"\x7fELF"
ARGUMENT_BYTES = 128 << 10
"""The kernel's limit (MAX_ARG_STRLEN)."""


def environment(function: dict) -> dict[str, str]:
    """The variables of INIT."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in function["env"].items()}


def start(image: dict, environment: dict[str, str], fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Args: image: `command` and `directory`. Raises: errors.ReportedError, which says what cannot be run."""
    command, directory = image["command"], image["directory"]
    try:
        return subprocess.Popen(command, env=environment, pass_fds=fds, cwd=directory)
    except OSError as error:
        if closed := closed_above(os.path.join(directory, "")):
            message = f"the working directory {directory} may not be entered: {no_entry(closed)}"
            raise errors.ReportedError(INVALID_DIRECTORY, message, []) from None
        if not os.path.isdir(directory):
            message = f"the working directory {directory} is not a directory of the image"
            raise errors.ReportedError(INVALID_DIRECTORY, message, []) from None
        message = why_not(command[0], environment.get("PATH", ""), directory, error)
        raise errors.ReportedError(INVALID_ENTRYPOINT, message, []) from None
    except ValueError as error:  # a zero byte
        raise errors.ReportedError(INVALID_ENTRYPOINT, f"{command[0]!r} cannot be run: {error}", []) from None


def why_not(name: str, path: str, directory: str, error: OSError) -> str:
    """Why a program cannot be run, in words."""
    if not name:
        return "the first word of the image's entry point is empty"
    file = find(name, path, directory)
    if file is None and "/" in name and (closed := closed_above(os.path.join(directory, name))):
        return f"the image's entry point {name} cannot be reached: {no_entry(closed)}"
    if file is None:
        where = f"in its PATH ({path})" if "/" not in name else "there"
        return f"the image's entry point {name} does not exist {where}"
    return why_not_run(file, error)


def why_not_run(file: str, error: OSError) -> str:
    """As `why_not`, of a file that is there."""
    if error.errno == errno.ENOENT:
        return f"{file} exists, but {interpreter(file)} does not"
    if error.errno == errno.ENOEXEC:
        return (
            f"{file} cannot be executed: exec format error (another architecture, or a script without #!: its first line must "
            "name its interpreter, such as #!/bin/sh)"
        )
    if os.path.isdir(file):
        return f"{file} is a directory, not a program"
    if error.errno == errno.EACCES and os.access(file, os.X_OK):
        return f"{file} cannot be executed, because {interpreter(file)} may not be executed by the sandbox's user"
    if error.errno == errno.EACCES:
        return f"{file} may not be executed by the sandbox's user (mode {os.stat(file).st_mode & 0o7777:04o})"
    if error.errno == errno.E2BIG:
        return (
            f"{file} cannot be executed: its arguments and variables are too long (each may have {ARGUMENT_BYTES >> 10} KB, "
            "all together 2 MB)"
        )
    return f"{file} cannot be executed: {os.strerror(error.errno or 0)}"


def closed_above(path: str) -> str | None:
    """The first directory on the way to a path that the sandbox's user may not enter."""
    ends = [index for index, character in enumerate(path) if character == "/"]
    above = [path[:end] or "/" for end in ends]
    return next((each for each in above if os.path.isdir(each) and not os.access(each, os.X_OK)), None)


def no_entry(directory: str) -> str:
    return f"{directory} is closed to the sandbox's user (mode {os.stat(directory).st_mode & 0o7777:04o})"


def find(name: str, path: str, directory: str) -> str | None:
    """The file that is run; None: there is none."""
    candidates = [name] if "/" in name else [os.path.join(each, name) for each in path.split(":")]
    files = [os.path.join(directory, each) for each in candidates]
    return next((file for file in files if os.path.exists(file)), None)


def interpreter(file: str) -> str:
    """What the kernel looks for to run a file, in words."""
    try:
        with open(file, "rb") as opened:
            head = opened.read(SCRIPT_BYTES)
    except OSError:
        return "its interpreter"
    if head.startswith(b"#!"):
        line = head[2:].split(b"\n")[0]
        ending = "\\r (the script's lines end with CR LF, as on Windows)" if line.endswith(b"\r") else ""
        return f"its interpreter {line.strip().decode(errors='replace')}{ending}"
    return "its dynamic loader (it was linked for another libc)" if head.startswith(ELF) else "its interpreter"
