"""POLICY: what variables of the interpreter and of its loader (PYTHON..., LD_...) in a function's environment mean for it. Pure.

A sandbox is forked from an interpreter that has started. It applies the variables that a running interpreter can still obey.
Those that hold only from the start are refused where a configuration is accepted, never when a recorded one is loaded. Programs
start their own interpreters and get all variables.

The variables that an interpreter was started with hold already: none of the host's Pythons, all of the image's own ENV for the
Python of an image. So no image is refused for its ENV.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sockd.base.errors import BadFunctionConfig
from sockd.isolation.roots.image_python import ImagePython
from sockd.isolation.roots.interpreter import OWN_PYTHON
from sockd.isolation.roots.python_variables import VARIABLES, Handling, PythonVariable

PATH = "PYTHONPATH"
SEARCH_PATH = "sys.path"
"""Compared as a variable of this name: the function's own PYTHONPATH, without the platform's part."""
READ_BY_IMPORTS = frozenset(
    {each.name for each in VARIABLES if each.handling is Handling.OBEYED and each.is_seen_by_imports} - {PATH}
) | {SEARCH_PATH}
"""Variables that the interpreter has read for each import: a Zygote without them serves no function that has them."""
TOO_LATE = "it is obeyed only when a process starts, and functions are forked from an interpreter that runs already"
IN_HOSTS_PYTHON = (
    "leave it out, start another interpreter with it in the code (subprocess), or deploy a program in an image"
)
IN_IMAGE = 'leave it out, set it in the image (ENV), or run the image\'s program (zygote = "none")'
_KNOWN = {each.name: each for each in VARIABLES}


@dataclass(frozen=True, slots=True)
class Started:
    """An interpreter that functions are forked from."""

    minor: int
    """The minor version: the interpreter is CPython 3.N."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What it was started with."""
    is_of_image: bool = False

    @classmethod
    def of_host(cls, python: str | None) -> Started:
        """A Python of the host. Args: python: "3.N", as a function asks for it; None: the worker's own."""
        return cls(int(python.partition(".")[2]) if python else OWN_PYTHON.version[1])

    @classmethod
    def of_image(cls, python: ImagePython) -> Started:
        """The Python of an image, which was asked and serves handlers."""
        assert python.facts is not None
        return cls(python.facts.version[1], python.variables, is_of_image=True)


def check(env: Mapping[str, str], started: Started, accepted: Mapping[str, str] | None = None) -> None:
    """Refuse a function's variables that would be ignored, or with which its interpreter would not start.

    Args: accepted: variables that the function has already, which were accepted before they were checked.
    Raises: BadFunctionConfig, which names the variable and shows no value: it may be a secret."""
    known = accepted or {}
    for variable, value in _known_of(env, started):
        if known.get(variable.name) == value:
            continue
        if reason := _why_not(variable, value, started):
            raise BadFunctionConfig(f"env name {variable.name!r}: {reason}")


def obeyed(env: Mapping[str, str], started: Started) -> dict[str, str]:
    """The variables that a function's sandbox has to apply (`sockd_zygote.handlers.interpreter_settings`)."""
    return {
        variable.name: value
        for variable, value in _known_of(env, started)
        if variable.handling is Handling.OBEYED
        and variable.name != PATH
        and variable.meaning(value) != variable.meaning(started.variables.get(variable.name, ""))
        and not _why_not(variable, value, started)
    }


def search_path(env: Mapping[str, str], directory: str) -> list[str]:
    """The directories that a function's own PYTHONPATH puts on sys.path, absolute as CPython makes them.

    Args: directory: where the function runs."""
    own = env.get(PATH, "")
    return [posixpath.normpath(posixpath.join(directory, each)) for each in own.split(":")] if own else []


def _known_of(env: Mapping[str, str], started: Started) -> Iterator[tuple[PythonVariable, str]]:
    """Iterate over the variables of a function that its interpreter obeys, with their values."""
    for name, value in env.items():
        if (variable := _KNOWN.get(name)) and started.minor >= variable.since:
            yield variable, value


def _why_not(variable: PythonVariable, value: str, started: Started) -> str:
    """Why a variable of this value is refused; empty: it is not."""
    if mistake := variable.mistake(value):
        return mistake
    held = started.variables.get(variable.name, "")
    if variable.meaning(value) == variable.meaning(held):
        return ""
    is_refused = variable.handling is Handling.REFUSED or (started.is_of_image and variable.is_refused_in_images)
    # What an interpreter has obeyed once cannot be undone without a trace: its streams, its filters of warnings.
    if is_refused or (variable.handling is Handling.OBEYED and held):
        advice = IN_IMAGE if started.is_of_image else IN_HOSTS_PYTHON
        return f"{TOO_LATE}: {advice}{f'. Instead: {variable.instead}' if variable.instead else ''}"
    return ""
