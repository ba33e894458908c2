"""Checks of single settings of a function, and their errors in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from sockd.base.errors import BadFunctionConfig
from sockd.base.spelling import unknown_key

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PYTHON = re.compile(r"3\.[0-9]{1,2}")
OLDEST_MINOR = 11
"""CPython 3.11 is the first that the Zygote's C extension is for."""
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "*")
SOURCE_CHARS = 8192
CALL_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
ENV_BYTES = 4096
"""AWS: 4 KB, names and values together."""
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
RESERVED_ENV = frozenset(
    {"_HANDLER", "_X_AMZN_TRACE_ID", "AWS_EXECUTION_ENV", "LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR"}
)
RESERVED_ENV_PREFIX = "AWS_LAMBDA_"
"""Set by us. AWS reserves its credentials and region too; here the function may set them."""
EXEC_WRAPPER = "AWS_LAMBDA_EXEC_WRAPPER"
"""The one of that prefix that is the function's own to set: a program that starts the runtime
(`sockd_zygote.handlers.programs.runtime_api`)."""


def check_name(name: str) -> str:
    """The name of a function, unchanged (AWS: letters, digits, '-' and '_', at most 64). Raises BadFunctionConfig."""
    if not NAME.fullmatch(name):
        raise BadFunctionConfig(f"function name {name[:80]!r}: must be 1 to 64 of the characters a-z A-Z 0-9 - _")
    return name


def check_methods(methods: list[str] | None) -> None:
    """Raises BadFunctionConfig unless these are HTTP methods or `*`."""
    if methods is not None and not 1 <= len(methods) <= len(METHODS):
        raise BadFunctionConfig(f"methods: must be 1 to {len(METHODS)} of {', '.join(METHODS)}")
    for method in methods or ():
        if method not in METHODS:
            raise BadFunctionConfig(f"methods: {method[:20]!r} is none of {', '.join(METHODS)}")


def check_python(version: str | None) -> None:
    """Raises BadFunctionConfig unless this is a version that functions may ask for."""
    if version is not None and not (PYTHON.fullmatch(version) and int(version[2:]) >= OLDEST_MINOR):
        raise BadFunctionConfig(f'python = {version[:20]!r}: must be "3.{OLDEST_MINOR}" or a later "3.N"')


def check_env_texts(env: object, file: str = "sockd.toml") -> None:
    """Raises BadFunctionConfig for the first variable of a file whose value is no text, with its name."""
    for name, value in env.items() if isinstance(env, dict) else ():
        if not isinstance(value, str):
            raise BadFunctionConfig(
                f'{file}: env.{name[:80]} must be text: write its value in quotes, {name[:80]} = "..."'
            )


def check_env(env: dict[str, str]) -> None:
    """Raises BadFunctionConfig unless these can be the environment of a function."""
    for name, value in env.items():
        shown = f"env name {name[:80]!r}"
        if not ENV_NAME.fullmatch(name):
            raise BadFunctionConfig(f"{shown}: must be letters, digits and '_', and not start with a digit")
        if name in RESERVED_ENV or (name.startswith(RESERVED_ENV_PREFIX) and name != EXEC_WRAPPER):
            raise BadFunctionConfig(f"{shown} is reserved: it is set for every function")
        if "\0" in value or not is_unicode(value):
            raise BadFunctionConfig(f"{shown}: its value holds a zero byte or half of a surrogate pair")
    size = sum(len(name) + len(value.encode()) for name, value in env.items())
    if size > ENV_BYTES:
        largest = max(env, key=lambda name: len(env[name].encode()))
        raise BadFunctionConfig(
            f"env has {size} bytes, names and values together; the limit is {ENV_BYTES}. The largest is {largest[:80]} with "
            f"{len(env[largest].encode())}; put a large value into a file of the code"
        )


def check_deployer(deployer: dict[str, str]) -> None:
    """Raises BadFunctionConfig unless this is empty, or a source and perhaps a key."""
    if not deployer:
        return
    source, key = deployer.get("source", ""), deployer.get("key")
    if not source or len(source) > SOURCE_CHARS or deployer.keys() - {"source", "key"}:
        raise BadFunctionConfig(
            f"deployer: must have a source of at most {SOURCE_CHARS} characters, and may have a key"
        )
    if key is not None and not CALL_KEY.fullmatch(key):
        raise BadFunctionConfig("deployer.key: must be 64 hex digits")


def check_bounds(config: msgspec.Struct, bounds: dict[str, tuple[float, float]], prefix: str = "") -> None:
    """Raises BadFunctionConfig for the first number that is less than its least or more than its most."""
    for key, (least, most) in bounds.items():
        value = getattr(config, key)
        if not least <= value <= most:  # written so that NaN, which TOML knows, is out of bounds
            raise BadFunctionConfig(f"{prefix}{key} = {number_words(value)}: must be between {least:g} and {most:g}")


def number_words(value: float) -> str:
    """A number for an error message. An integer of more than 15 digits is not written out."""
    return str(value) if isinstance(value, float) or abs(value) < 1e15 else "a number that large"


def is_unicode(text: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can say "\ud800", and Python's str can hold it
        return False
    return True


def check_keys(table: Iterable[str], known: tuple[str, ...], prefix: str = "") -> None:
    """Raises BadFunctionConfig for the first key that is not known."""
    for key in table:
        if key not in known:
            raise BadFunctionConfig(unknown_key(key, known, prefix))


def error_words(error: Exception, settings: type[msgspec.Struct], in_file: Collection[str] = ()) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.memory_mb`" with the key in front, and the file that it is in, if any.

    Args: settings: what the value was to be; in_file: keys of sockd.toml."""
    what, _, where = str(error).partition(" - at `$.")
    if not where:
        return what
    key = where.rstrip("`")
    if what.startswith("Invalid enum value") and key in settings.__struct_fields__:
        what = f"{what}, must be one of {', '.join(_choices(get_type_hints(settings)[key]))}"
    what = what.replace("`array", "`list")
    return f"{'sockd.toml: ' if re.split(r'[.[]', key)[0] in in_file else ''}{key}: {what}"


def _choices(hint: Any) -> list[str]:
    """What a type allows: the values of its `Literal`."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [each for part in get_args(hint) for each in _choices(part)]
