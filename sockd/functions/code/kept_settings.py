"""Kept settings: those that a command has set, which deploys keep until their own sockd.toml names them.

    sockd config f --memory 256      by_command = ["memory_mb"]
    sockd env f MODE=test            by_command = ["env.MODE", "memory_mb"]

Settings that go with the code, such as `handler`, are not among them. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.function_config import FunctionConfig

KEPT = (
    "timeout_s",
    "init_timeout_s",
    "memory_mb",
    "concurrency",
    "run",
    "network",
    "egress",
    "writable_root",
    "snapshot",
    "tmp_mb",
    "log_format",
    "log_level",
    "system_log_level",
)
"""The settings that commands and AWS's API change without the code, besides variables."""
ENV = "env."


class Kept(NamedTuple):
    """The settings of a deploy, with those that commands had set."""

    config: FunctionConfig
    kept: tuple[str, ...]
    """What commands had set and this deploy keeps, for people; of variables only the names."""
    changed: tuple[str, ...]
    """What commands had set and this deploy changes, likewise."""


def marked(before: FunctionConfig, after: FunctionConfig, changes: Collection[str]) -> FunctionConfig:
    """Note in changed settings what a command has set. Args: changes: the keys that it named."""
    names = set(before.by_command) | (set(changes) & set(KEPT))
    if "env" in changes:
        keys = before.env.keys() | after.env.keys()
        names |= {ENV + key for key in keys if before.env.get(key) != after.env.get(key)}
    return msgspec.structs.replace(after, by_command=sorted(names))


def named(table: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings that a sockd.toml names, a variable as env.NAME."""
    env = table.get("env")
    variables = (ENV + key for key in env) if isinstance(env, Mapping) else ()
    return frozenset((*table, *variables))


def apply(config: FunctionConfig, before: FunctionConfig, names: Collection[str]) -> Kept:
    """Return the settings of a deploy with those that commands had set before.

    Args: config: what the deploy says; before: the settings of the function; names: of `named`, what the deploy names.
    Raises: BadFunctionConfig if the deploy's settings do not go with those that are kept."""
    marks = _possible(config, before.by_command)
    changed = [mark for mark in marks if mark in names and _value(config, mark) != _value(before, mark)]
    kept = [mark for mark in marks if mark not in names and _value(config, mark) != _value(before, mark)]
    env = {key: value for key, value in config.env.items() if ENV + key not in kept}
    env |= {key: value for key, value in before.env.items() if ENV + key in kept}
    settings = {mark: getattr(before, mark) for mark in kept if not mark.startswith(ENV)}
    by_command = [mark for mark in before.by_command if mark not in changed]
    config = msgspec.structs.replace(config, **settings, env=env, by_command=by_command)
    try:
        config.check()
    except BadFunctionConfig as error:
        if not kept:
            raise
        raise BadFunctionConfig(f"{error.message}; kept from sockd config and sockd env: {', '.join(kept)}") from None
    return Kept(
        config, tuple(_shown(before, mark) for mark in kept), tuple(_change(before, config, each) for each in changed)
    )


def without_variables(config: FunctionConfig) -> tuple[FunctionConfig, list[str]]:
    """Settings that keep nothing of their variables. Returns: also the names of those that commands had set."""
    variables = [mark for mark in config.by_command if mark.startswith(ENV)]
    others = [mark for mark in config.by_command if not mark.startswith(ENV)]
    return msgspec.structs.replace(config, by_command=others), [mark.removeprefix(ENV) for mark in variables]


def _possible(config: FunctionConfig, marks: Iterable[str]) -> list[str]:
    return [mark for mark in marks if config.image is not None or mark != "writable_root"]


def _value(config: FunctionConfig, mark: str) -> object:
    return config.env.get(mark.removeprefix(ENV)) if mark.startswith(ENV) else getattr(config, mark, None)


def _shown(config: FunctionConfig, mark: str) -> str:
    if mark.startswith(ENV):  # values of variables are in no log
        return mark if mark.removeprefix(ENV) in config.env else f"{mark} (unset)"
    return f"{mark} = {_text(config, mark)}"


def _change(before: FunctionConfig, after: FunctionConfig, mark: str) -> str:
    if mark.startswith(ENV):
        return mark
    return f"{mark} from {_text(before, mark)} to {_text(after, mark)}"


def _text(config: FunctionConfig, mark: str) -> str:
    value = getattr(config, mark)
    return "unset" if value is None else msgspec.json.encode(value).decode()
