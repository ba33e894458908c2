"""The code of a decorated function as it is deployed: the files of its module's directory, and what makes a function of them.

    sockd.py            the stand-in, and which function it is (`stand_in`)
    sockd.toml          the settings of the decorator
    requirements.txt    its packages; without any, the directory's own file

Owns nothing. The zip of the same files and settings is the same, and so is its digest, which the worker tells as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sockd.client.python import stand_in
from sockd.client.python.errors import DeployFailed

HANDLER = "sockd:handler"
TAIL = """

import sys

__import__({place.module!r})
handler = make_handler(sys.modules[{place.module!r}].{place.attribute}, {place.module!r}, {pickles!r})
"""
"""What follows the stand-in in a function's sockd.py."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a function is defined."""

    directory: Path
    """What its module is imported from."""
    module: str
    """Its name there, dotted if it is in a package; never __main__."""
    attribute: str
    source: str
    """FILE:FUNCTION, by which the worker tells one function of this name from another's."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A function's code, ready to be sent."""

    archive: bytes
    digest: str
    """As the worker's, of the extracted files."""
    secrets: tuple[str, ...] = ()
    """Files and directories that were left out, as they may hold credentials."""


def place_of(function: Callable[..., Any]) -> Place:
    """Where a function is, so that a sandbox can import it. Raises: DeployFailed when it cannot."""
    name = function.__qualname__
    if "." in name or not name.isidentifier():
        raise DeployFailed(f"{name} cannot be deployed: only functions at the top of a module can be imported by name")
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if module is None or not file:
        raise DeployFailed(f"{name} cannot be deployed: it is in no file, as in an interactive session")
    dotted = module.__name__
    if dotted == "__main__":
        spec = getattr(module, "__spec__", None)
        dotted = spec.name.removesuffix(".__main__") if spec is not None else Path(file).stem
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise DeployFailed(f"{file} cannot be deployed: a module's name must be letters, digits and '_'")
    path = Path(file).resolve()
    directory = path.parent
    for _ in dotted.split(".")[1:]:
        directory = directory.parent
    return Place(directory, dotted, name, f"{path}:{name}")


def package(
    place: Place,
    packages: Sequence[str],
    settings: Mapping[str, Any],
    *,
    files: Sequence[str] | None,
    pickles: bool,
) -> Packed:
    """Everything that a worker needs.

    Args:
        files: of the directory, the only ones to be packed, also directories; None: all.
        pickles: whether the function takes and gives pickles.
    Raises: DeployFailed."""
    # Here, because a client that finds its functions deployed needs none of it, and it takes longer than all the rest.
    from sockd.base.errors import BadArchive
    from sockd.functions.code.packing import pack_directory

    if (place.directory / "sockd.py").exists() or (place.directory / "sockd").exists():
        raise DeployFailed(
            f"{place.directory} holds a module `sockd`, where the function's own `import sockd` would find it"
        )
    added = {"sockd.toml": toml({"handler": HANDLER, **settings}).encode()}
    if packages:
        added["requirements.txt"] = "".join(f"{each}\n" for each in packages).encode()
    added["sockd.py"] = (Path(stand_in.__file__).read_text() + TAIL.format(place=place, pickles=pickles)).encode()
    try:
        packed = pack_directory(place.directory, only=files, added=added)
    except BadArchive as error:
        raise DeployFailed(
            f"{place.directory} cannot be packed: {error.message}; "
            "@sockd.function(files=[...]) names what the function needs of it"
        ) from None
    except OSError as error:
        raise DeployFailed(f"{place.directory} cannot be packed: {error}") from error
    return Packed(packed.archive, packed.digest, tuple(each.path for each in packed.left_out if each.is_secret))


def toml(settings: Mapping[str, Any]) -> str:
    """Settings as TOML. Raises: DeployFailed for what has no place there."""
    return "".join(f"{key} = {_toml_value(key, value)}\n" for key, value in sorted(settings.items()))


def _toml_value(key: str, value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(each))} = {_toml_value(key, value[each])}" for each in value) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_toml_value(key, each) for each in value) + "]"
    raise DeployFailed(f"{key} = {value!r}: a setting must be text, a number, a list or a table, as in sockd.toml")
