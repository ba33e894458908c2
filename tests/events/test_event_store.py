"""The event store's file: what it survives, what it refuses, and how large it gets (`test_event_backend` has the verbs)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sockd.base.errors import StorageFull
from sockd.base.sqlite.store_thread import StoreThread
from sockd.events import event_schema
from sockd.events.event import Event
from sockd.events.event_store import SPARE_PAGES, BadEventStore, EventStore
from tests.support.old_events import old_events

NOW = 1_700_000_000.0


def event(function: str = "f", size: int = 2, **fields: object) -> Event:
    made = Event(0, uuid.uuid4().bytes, function, "", "aws", 0, NOW, NOW, 0, 0, 0, size)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def add(store: EventStore, made: Event, payload: bytes = b"{}") -> Event:
    made.seq = store.add(made, payload)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[EventStore]:
    store = EventStore.open(path)
    yield store
    store.close()


def test_the_file_is_root_s_own(store: EventStore, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at" * 40, None])
def test_a_file_that_cannot_be_used_says_what_to_do(path: Path, content: bytes | None) -> None:
    if content is None:
        EventStore.open(path).close()
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 99")
        database.close()
    else:
        path.write_bytes(content)
    with pytest.raises(BadEventStore, match=r"state directory"):
        EventStore.open(path)


def test_a_database_of_something_else_is_refused(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE cookies (value)")
    database.close()
    with pytest.raises(BadEventStore, match="something else"):
        EventStore.open(path)


KILLED = """
import asyncio, os, signal, sys, uuid
from pathlib import Path
from sockd.events.event import Event
from sockd.events.event_store import EventStore
from sockd.base.sqlite.store_thread import StoreThread

async def main():
    thread = StoreThread(EventStore.open(Path(sys.argv[1])), "events")
    for number in range(50):
        event = Event(0, uuid.UUID(int=number).bytes, "f", "", "aws", 0, 0.0, 0.0, 0, 0, 0, 2)
        await thread.run(lambda store: store.add(event, b"%d" % number))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_what_was_committed_survives_a_kill(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=os.getcwd(), check=False)
    assert killed.returncode == -9
    store = EventStore.open(path)
    assert [store.payload(each.seq) for each in store.waiting()] == [b"%d" % number for number in range(50)]
    store.close()


@pytest.mark.anyio
async def test_work_that_fails_undoes_itself_alone(path: Path) -> None:
    thread = StoreThread(EventStore.open(path), "events")

    def fails(store: EventStore) -> None:
        add(store, event())
        raise ValueError("no")

    results = await asyncio.gather(
        thread.run(lambda store: add(store, event())),
        thread.run(fails),
        thread.run(lambda store: add(store, event())),
        return_exceptions=True,
    )
    assert isinstance(results[1], ValueError)
    assert len(await thread.run(lambda store: store.waiting())) == 2
    await thread.aclose()
    await thread.aclose()


@pytest.mark.anyio
async def test_a_full_disk_is_reported_and_loses_nothing_that_was_committed(path: Path) -> None:
    store = EventStore.open(path)
    kept = add(store, event())
    (pages,) = store.database.execute("PRAGMA page_count").fetchone()
    store.database.execute(f"PRAGMA max_page_count = {pages}")
    thread = StoreThread(store, "events")
    with pytest.raises(StorageFull):
        await thread.run(lambda store: store.add(event(size=100_000), bytes(100_000)))
    assert await thread.run(lambda store: store.waiting()) == [kept]
    await thread.aclose()


def test_a_file_of_an_older_sockd_keeps_what_is_in_it_and_gets_smaller(path: Path) -> None:
    old = old_events(path, [b'{"n": %d}' % number for number in range(3)])
    old.execute("INSERT INTO configs VALUES ('f', '$LATEST', 1, NULL, '', 'directory:x', 5.0)")
    old.execute("INSERT INTO accepted VALUES (x'01', x'02', 5.0)")
    old.execute("CREATE TABLE filler AS SELECT randomblob(20000000) AS it")
    old.execute("DROP TABLE filler")
    old.close()
    assert path.stat().st_size > 20_000_000
    store = EventStore.open(path)
    assert [store.payload(each.seq) for each in store.waiting()] == [b'{"n": %d}' % number for number in range(3)]
    letters = store.dead.last(10)
    assert [(letter.reason, letter.error_type, letter.size) for letter in letters] == [
        ("RetriesExhausted", "ValueError", 8)
    ] * 3
    assert [store.dead.payload(letter) for letter in letters] == [b'{"n": 2}', b'{"n": 1}', b'{"n": 0}']
    assert store.dead.total() == (3, 24)
    assert store.dead.discard(letters[0]) and store.dead.total() == (2, 16)
    assert (len(store.configs.all()), store.known(b"\x01", 0)) == (1, b"\x02")
    assert store.database.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    store.close()
    EventStore.open(path).close()
    assert path.stat().st_size < 1_000_000


def test_a_migration_that_is_cut_off_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_events(path, [b"{}"]).close()
    with monkeypatch.context() as patch:
        patch.setattr(event_schema, "FROM_1_TO_2", event_schema.FROM_1_TO_2 + "SELECT nothing;")
        with pytest.raises(BadEventStore):
            EventStore.open(path)
    store = EventStore.open(path)
    assert [store.payload(each.seq) for each in store.waiting()] == [b"{}"]
    store.close()


def test_an_event_that_dies_moves_without_its_body(store: EventStore) -> None:
    """Counted in pages that are written."""
    for _ in range(20):
        add(store, event(size=1_000_000), os.urandom(1_000_000))
    store.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    store.dead.bury_function("f", NOW, "FunctionRemoved", but=[])
    _, written, _ = store.database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert written < 50
    assert store.dead.total() == (20, 20_000_000)


@pytest.mark.anyio
async def test_what_deleted_bodies_leave_is_given_back_when_nothing_is_to_be_done(path: Path) -> None:
    store = EventStore.open(path)
    thread = StoreThread(store, "events")
    made = [await thread.run(lambda store: add(store, event(), os.urandom(1_000_000))) for _ in range(20)]
    kept = made.pop()
    for each in made:
        await thread.run(partial(EventStore.remove, seq=each.seq))
    await thread.aclose()
    again = EventStore.open(path)
    while again.tidy():
        continue
    assert again.payload(kept.seq) is not None
    assert path.stat().st_size < 1_000_000 + SPARE_PAGES * 4096 + 100_000
    again.close()
