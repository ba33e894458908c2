"""A worker of the next version of sockd, for groups of two versions: `python -m tests.support.newer -m sockd up ...`.

The next version is this one, which stores a label with each function and each deploy's settings, and has a column more in each
table that workers share: what an older worker drops, it drops here.
"""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace

from sockd.events.postgres import events as postgres_events
from sockd.functions.registry import postgres_store
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_record import FunctionRecord

LABEL = "of the next version"


def labelled(*tables: str) -> str:
    """Return a migration that gives tables one more column."""
    return "".join(f"ALTER TABLE {table} ADD COLUMN label TEXT NOT NULL DEFAULT '{LABEL}';" for table in tables)


def _with_label(text: str) -> str:
    return json.dumps({**json.loads(text), "label": LABEL})


def grow() -> None:
    """Make this process one of the next version."""
    store, events = vars(postgres_store), vars(postgres_events)
    encoded, row = store["encoded"], postgres_store.PostgresStore._row

    def encode(function: FunctionAggregate) -> str:
        return _with_label(encoded(function))

    def labelled_row(self: postgres_store.PostgresStore, record: FunctionRecord) -> tuple[object, ...]:
        return row(self, replace(record, config=_with_label(record.config)))

    store["encoded"] = encode
    postgres_store.PostgresStore._row = labelled_row  # type: ignore[method-assign]
    store["HEAD_SCHEMA"] += 1
    store["MIGRATIONS"] += (labelled("functions", "deploys", "function_removals", "blobs"),)
    tables = ("events", "bodies", "accepted", "dead", "suspicions", "configs", "schedules", "workers")
    events["MIGRATIONS"] += (labelled(*tables),)


if __name__ == "__main__":
    grow()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
