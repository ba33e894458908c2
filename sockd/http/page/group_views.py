"""The workers of a group as the values of a template: state, load, version, and what differs among them.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sockd.http.page import words
from sockd.http.page.views import Values

DIFFERING = {"version": "versions", "configuration": "settings"}
"""What should be the same on all workers, and its words."""


def workers_page(name: str, rows: Sequence[Mapping[str, Any]]) -> Values:
    """The page of a group. Args: name: of the group; rows: its workers, as `Group.workers`."""
    live = [row for row in rows if not row["taken_by"]]
    differs = [words_of for key, words_of in DIFFERING.items() if len({row.get(key) for row in live}) > 1]
    return {
        "group": name,
        "live": words.many(len(live), "worker"),
        "workers": [_row(row) for row in rows],
        "differs": " and ".join(differs),
    }


def _row(row: Mapping[str, Any]) -> Values:
    """One worker. Of one that a newer or older sockd runs, some values may not be there."""
    return {
        "name": row["name"],
        "here": row.get("here", False),
        "state": f"gone; {row['taken_by']} has its events" if row["taken_by"] else row["state"],
        "is_bad": bool(row["taken_by"]),
        "address": row.get("address", ""),
        "running": words.grouped(row.get("running", 0)),
        "queued": words.grouped(row.get("queued", 0)),
        "memory": f"{100 * row['memory']:.0f} %" if "memory" in row else "",
        "events": words.grouped(row["events"]),
        "share": f"1/{row['divisor']}" if "divisor" in row else "",
        "revision": str(row.get("revision", "")),
        "seen": f"{row['seen_s']:.0f} s ago",
        "version": row.get("version", ""),
        "settings": row.get("configuration", ""),
    }
