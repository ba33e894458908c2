"""The USER of an image, as Docker reads it: whose files are those of the functions that run in the image. Pure."""

from __future__ import annotations

from sockd.isolation.roots.owner_maps import END_OF_IDS, ROOT, Owner

_NAME, _NUMBER, _GROUP = 0, 2, 3
"""Fields of passwd(5) and group(5); both have names and numbers at the same places."""


def owner_of(user: str, passwd: str, group: str) -> Owner | None:
    """The user and group that USER names; None: the image has no such user or group.

    Args:
        user: NAME, UID, NAME:GROUP or UID:GID; empty: root.
        passwd, group: the image's files."""
    if not user:
        return ROOT
    name, _, group_name = user.partition(":")
    line = _find(passwd, name)
    uid = _number(name) if line is None else _number(line[_NUMBER])
    gid = ROOT.gid if line is None else _number(line[_GROUP])
    if group_name:
        line = _find(group, group_name)
        gid = _number(group_name) if line is None else _number(line[_NUMBER])
    return None if uid is None or gid is None else Owner(uid, gid)


def _find(text: str, wanted: str) -> list[str] | None:
    """The first line with a name, or else with a number."""
    lines = [fields for each in text.splitlines() if len(fields := each.split(":")) > _NUMBER]
    lines = [fields if len(fields) > _GROUP else [*fields, ""] for fields in lines]
    for field in (_NAME, _NUMBER):
        for line in lines:
            if line[field] == wanted:
                return line
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < END_OF_IDS else None
