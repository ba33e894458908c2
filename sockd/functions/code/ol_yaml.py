"""OpenLambda's `ol.yaml`: what it says of a function, as keys of our `sockd.toml`.

Pure. YAML is read with PyYAML's own parser in Python (a stranger's text, so no C), as texts, lists and mappings only: no
tags, no aliases, which a few bytes can make into gigabytes. What we do not do is refused by name, or mentioned if the function
can be used without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import yaml

from sockd.base.errors import BadFunctionConfig

FILE = "ol.yaml"
ENTRY_FILE, WSGI_ENTRY, ASGI_ENTRY = "OL_ENTRY_FILE", "OL_WSGI_ENTRY", "OL_ASGI_ENTRY"
SECTIONS = ("triggers", "environment", "reuse-sandbox", "limits")
LIMITS: dict[str, tuple[str, Callable[[str], float]]] = {
    "mem_mb": ("memory_mb", int),
    "runtime_sec": ("timeout_s", float),
    "procs": ("pids", int),
    "cpu_percent": ("cpus", lambda text: int(text) / 100),
}
"""OpenLambda's names, of its worker's configuration."""
SWITCH = {"true": True, "false": False}
MOST_NESTED = 32
"""Levels of lists and mappings. PyYAML calls itself for each, and how deep that may go depends on Python and on the caller."""


class OlYaml(NamedTuple):
    """What the file says."""

    settings: dict[str, Any]
    """Keys of sockd.toml."""
    notes: list[str]
    """Notes on settings that have no effect here, for the output of the deploy."""


def read(text: str) -> OlYaml:
    """The file's meaning. Raises: BadFunctionConfig, naming what is wrong."""
    try:
        table = yaml.load(text, Loader=_Loader)  # makes texts of everything
    except (yaml.YAMLError, ValueError) as error:
        raise BadFunctionConfig(f"{FILE}: {' '.join(str(error).split())[:300]}") from None
    settings: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in _mapping(table, "the file").items():
        if name == "environment":
            settings |= _environment(_mapping(value, name))
        elif name == "triggers":
            settings |= _triggers(_mapping(value, name), notes)
        elif name == "limits":
            settings |= _limits(_mapping(value, name))
        elif name == "reuse-sandbox":
            if value not in SWITCH:
                raise BadFunctionConfig(f"{FILE}: reuse-sandbox must be true or false")
            settings["reuse_sandbox"] = SWITCH[value]
        else:
            raise BadFunctionConfig(f"{FILE}: unknown key {name[:80]!r}; the keys are {', '.join(SECTIONS)}")
    return OlYaml(settings, notes)


class _Loader(yaml.BaseLoader):
    _level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise BadFunctionConfig(f"{FILE}: aliases (*name) are not read; write the value out")
        if self._level > MOST_NESTED:
            raise BadFunctionConfig(f"{FILE}: nested too deeply: at most {MOST_NESTED} levels are read")
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node


def _environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """The variables, and the entry point if they name one."""
    env = {name: _text(value, name) for name, value in given.items()}
    entry_file, wsgi, asgi = (env.get(name, "") for name in (ENTRY_FILE, WSGI_ENTRY, ASGI_ENTRY))
    if not (entry_file or wsgi or asgi):
        return {"env": env}
    if not (entry_file or "f.py").endswith(".py"):
        raise BadFunctionConfig(f"{FILE}: {ENTRY_FILE} = {entry_file[:80]!r}: must be a file named *.py")
    settings: dict[str, Any] = {"env": env}
    settings["handler"] = f"{(entry_file or 'f.py').removesuffix('.py')}:{wsgi or asgi or 'f'}"
    if wsgi or asgi:
        settings["app"] = "wsgi" if wsgi else "asgi"
    return settings


def _triggers(given: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The HTTP methods. Other triggers do not call anything here."""
    settings: dict[str, Any] = {}
    for kind, entries in given.items():
        if kind == "http":
            methods = [_text(_mapping(entry, kind).get("method"), "method") for entry in _list(entries, kind)]
            settings["methods"] = list(dict.fromkeys(methods))
        elif kind == "kafka":
            notes.append(f"{FILE}: kafka triggers are not offered: nothing but requests will call this function")
        elif kind == "cron":
            raise BadFunctionConfig(f"{FILE}: cron triggers are not read from here; use `sockd schedule`")
        else:
            raise BadFunctionConfig(f"{FILE}: unknown trigger {kind[:80]!r}; the triggers are http, cron, kafka")
    return settings


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in LIMITS:
            raise BadFunctionConfig(f"{FILE}: limits.{name[:80]} is not offered; those that are: {', '.join(LIMITS)}")
        ours, convert = LIMITS[name]
        try:
            settings[ours] = convert(_text(value, name))
        except (ValueError, OverflowError):
            raise BadFunctionConfig(f"{FILE}: limits.{name} = {str(value)[:80]!r}: must be a number") from None
    return settings


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value in ("", None):  # what YAML has under a name without anything
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadFunctionConfig(f"{FILE}: {name}: must be a mapping")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadFunctionConfig(f"{FILE}: {name}: must be a list")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadFunctionConfig(f"{FILE}: {name[:80]}: must be text")
    return value
