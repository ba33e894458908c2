"""Settings as another version of sockd may have stored them: what this version does not know of them is left out.

So a worker of a group serves what a newer one has deployed. Pure.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def read_settings(text: str, kind: type[S]) -> S:
    """Read JSON of a struct. Raises: msgspec.ValidationError: what this version knows of it is something else."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        return msgspec.convert(_known(msgspec.json.decode(text), kind), kind)


def _known(value: Any, kind: Any) -> Any:
    structs = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    if not structs or not isinstance(value, dict):
        return value
    types = {field.encode_name: field.type for field in msgspec.structs.fields(structs[0])}
    return {key: _known(each, types[key]) for key, each in value.items() if key in types}
