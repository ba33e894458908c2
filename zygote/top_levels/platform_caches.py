"""Whether the caches of `platform` hold what each start works out: the kernel's names, the C library's version, /etc/os-release.

A cache that was filled so is no change, and one that holds anything else is. No function of `platform` is called for that: some
start programs.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")
DEFAULTS = frozenset({"Linux", "linux"})
"""What `platform` takes for names that the file does not have."""
SEPARATORS = str.maketrans(' /\\:;"()', "_-------")
"""What it writes for characters that no name of a file has."""


def wrong_caches(module: Any) -> list[str]:
    """Return the names of caches that hold something else. Args: module: `platform`."""
    return sorted(name for name, is_right in CACHES.items() if not is_right(getattr(module, name, None)))


def _is_uname(value: Any) -> bool:
    """Whether it is what uname(2) says. `platform` adds the processor when it is asked for it, and starts a program for that."""
    if value is None:
        return True
    fields = [tuple.__getitem__(value, number) for number in range(tuple.__len__(value))]
    processor = vars(value).get("processor", "")
    return fields == list(os.uname()) and processor in ("", os.uname().machine) and len(vars(value)) < 2


def _are_platforms(value: Any) -> bool:
    system = os.uname()
    libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    texts = {
        "-".join([*parts, "with", libc]).translate(SEPARATORS)
        for parts in (
            (system.sysname, system.release),
            (system.sysname, system.release, system.machine),
            (system.sysname, system.release, system.machine, system.machine),
        )
    }
    return set(dict.values(value)) <= texts if value is not None else True


def _are_versions(value: Any) -> bool:
    """Whether it has what `sys.version` says, and under no other key."""
    known = {sys.version.split()[0], "CPython", "", *getattr(sys, "_git", ())}
    parts = [str(part) for each in (value or {}).values() for part in each]
    text = sys.version.replace(",", "")  # as `platform` writes the date
    return set(value or {}) <= {sys.version} and all(part in known or part in text for part in parts)


def _is_os_release(value: Any) -> bool:
    texts = [text for text in map(_read, OS_RELEASE) if text][:1]
    return all(each in DEFAULTS or any(each in text for text in texts) for each in dict(value or {}).values())


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


CACHES: dict[str, Callable[[Any], bool]] = {
    "_os_release_cache": _is_os_release,
    "_platform_cache": _are_platforms,
    "_sys_version_cache": _are_versions,
    "_uname_cache": _is_uname,
}
"""By name: whether it holds what each start works out."""
