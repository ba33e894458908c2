"""What a function reads: from its initscript when that has made the same RPC, from S3 in every other case, and rightly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.storage_lib.conftest import S3, Observer
from tests.storage_lib.engine_end import EngineEnd

GET, LIST = "s3.GetObject", "s3.ListObjectsV2"
REGION, NETWORK = "region", "network"


def served(engine: EngineEnd) -> list[str]:
    return [served for _, served in engine.reads()]


def read(storage: Any, key: str) -> bytes:
    return bytes(storage.download_stream("bkt", key))


def test_what_the_script_fetched_is_served(storage: Any, engine: EngineEnd, tmp_path: Path) -> None:
    engine.message(0, b"zero", GET, "bkt", "x")
    engine.message(1, b"1" * 300_000, GET, "bkt", "y", own=True)
    assert read(storage, "x") == b"zero"
    storage.storage.get_instance().download("bkt", "y", str(tmp_path / "y"))
    assert (tmp_path / "y").read_bytes() == b"1" * 300_000
    assert engine.reads() == [([GET, "bkt", "x"], REGION), ([GET, "bkt", "y"], REGION)]


def test_other_arguments_go_to_the_network(storage: Any, engine: EngineEnd, s3: S3) -> None:
    s3.put("other", b"the other")
    engine.message(0, b"zero", GET, "bkt", "x")
    engine.message(1, b"one", GET, "bkt", "y")
    assert read(storage, "other") == b"the other"
    assert read(storage, "y") == b"one"
    assert served(engine) == [NETWORK, REGION]


@pytest.mark.parametrize(
    "rpc", [(GET, "bkt", "X"), (GET, "c", "x"), (LIST, "bkt", "x"), (GET, "bkt", "x", "bytes=0-1"), (), (GET, "bkt")]
)
def test_only_the_very_same_call_is_served(storage: Any, engine: EngineEnd, s3: S3, rpc: tuple[str, ...]) -> None:
    s3.put("x", b"right")
    engine.message(0, b"wrong", *rpc)
    assert read(storage, "x") == b"right"
    assert served(engine) == [NETWORK]


def test_the_number_of_a_reply_is_of_no_matter(storage: Any, engine: EngineEnd) -> None:
    engine.message(5, b"from the script", GET, "bkt", "x")
    engine.end()
    assert read(storage, "x") == b"from the script"


def test_replies_to_equal_calls_are_served_one_after_the_other(storage: Any, engine: EngineEnd, s3: S3) -> None:
    s3.put("x", b"from S3")
    for number in (3, 9):
        engine.message(number, b"%d" % number, GET, "bkt", "x")
    assert [read(storage, "x") for _ in range(3)] == [b"3", b"9", b"from S3"]


def test_an_error_is_not_served_but_raised_by_boto3(storage: Any, engine: EngineEnd) -> None:
    engine.message(0, b"<Error/>", GET, "bkt", "missing", status=404)
    with pytest.raises(storage.get_instance().client.exceptions.NoSuchKey):
        read(storage, "missing")
    assert engine.reads() == [([GET, "bkt", "missing"], NETWORK)]


def test_a_reply_on_its_way_is_waited_for(storage: Any, engine: EngineEnd, s3: S3) -> None:
    engine.sent(0, GET, "bkt", "x")
    later = threading.Timer(0.2, engine.message, (0, b"late", GET, "bkt", "x"))
    later.start()
    assert read(storage, "x") == b"late"
    later.join()
    assert served(engine) == [REGION]
    assert s3.requests("GET") == []


def test_a_script_that_is_behind_is_given_a_moment(storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "10")
    later = threading.Timer(0.05, engine.sent, (0, GET, "bkt", "x"))
    later.start()
    last = threading.Timer(0.1, engine.message, (0, b"late", GET, "bkt", "x"))
    last.start()
    assert read(storage, "x") == b"late"
    later.join()
    last.join()
    assert s3.requests("GET") == []


def test_a_script_that_is_ahead_is_waiting_for_us(storage: Any, engine: EngineEnd) -> None:
    for number in reversed(range(50)):
        engine.message(number, b"%d" % number, GET, "bkt", f"k{number}")
    engine.end()
    assert [read(storage, f"k{number}") for number in range(50)] == [b"%d" % number for number in range(50)]
    assert set(served(engine)) == {REGION}


def test_a_moment_in_vain_is_given_once(storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "0.3")
    for number in range(3):
        s3.put(f"k{number}", b"%d" % number)
    started = time.monotonic()
    assert read(storage, "k0") == b"0"
    assert time.monotonic() - started >= 0.3
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "1000")  # so that a second wait would end this test
    assert [read(storage, f"k{number}") for number in (1, 2)] == [b"1", b"2"]
    engine.sent(3, GET, "bkt", "k2")
    engine.message(3, b"news", GET, "bkt", "k2")
    assert read(storage, "k2") == b"news"


def test_no_one_waits_long_next_to_another_object(storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "5")
    monkeypatch.setenv("SOCKD_STORAGE_WAIT_S", "1000")
    for key in ("x", "z"):
        s3.put(key, b"from S3")
    engine.sent(0, GET, "bkt", "y")
    started = time.monotonic()
    assert [read(storage, key) for key in ("x", "z")] == [b"from S3"] * 2
    assert 0.5 <= time.monotonic() - started < 5


def test_a_script_that_sends_its_rpcs_one_after_the_other_is_given_a_moment(
    storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "100")
    engine.sent(0, GET, "bkt", "y")
    later = threading.Timer(0.1, engine.message, (1, b"next", GET, "bkt", "x"))
    later.start()
    assert read(storage, "x") == b"next"
    later.join()


def test_the_wait_for_a_reply_is_bounded(storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_WAIT_S", "0.1")
    s3.put("x", b"from S3")
    engine.sent(0, GET, "bkt", "x")
    assert read(storage, "x") == b"from S3"
    assert served(engine) == [NETWORK]


def test_messages_may_be_numbered_unlike_rpcs(storage: Any, engine: EngineEnd, s3: S3) -> None:
    engine.sent(1000, GET, "bkt", "x")
    later = threading.Timer(0.2, engine.message, (0, b"sent on", GET, "bkt", "x"))
    later.start()
    assert read(storage, "x") == b"sent on"
    later.join()


def test_a_reply_that_another_thread_took_is_not_waited_for(
    storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_WAIT_S", "1000")
    s3.put("x", b"from S3")
    engine.sent(1000, GET, "bkt", "x")
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(read, storage, "x") for _ in range(2)]
        later = threading.Timer(0.1, engine.message, (1000, b"fetched", GET, "bkt", "x"))
        later.start()
        assert {each.result() for each in found} == {b"fetched", b"from S3"}
    later.join()


def test_a_silent_engine_costs_one_wait(storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_WAIT_S", "0.3")
    for number in range(3):
        s3.put(f"k{number}", b"%d" % number)
        engine.sent(number, GET, "bkt", f"k{number}")
    assert read(storage, "k0") == b"0"
    monkeypatch.setenv("SOCKD_STORAGE_WAIT_S", "1000")  # so that a second wait would end this test
    assert [read(storage, key) for key in ("k1", "k2")] == [b"1", b"2"]


def end(engine: EngineEnd) -> None:
    engine.end("deadline", 0)


def die(engine: EngineEnd) -> None:
    engine.sock.close()


def fail(engine: EngineEnd) -> None:
    engine.failed(0, GET, "bkt", "x")


def rave(engine: EngineEnd) -> None:
    engine.sock.send(b"not of this link")


@pytest.mark.parametrize("fate", [end, die, fail, rave])
@pytest.mark.parametrize("announced", [True, False])
def test_what_will_not_come_is_fetched_at_once(
    storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any, fate: Callable[[EngineEnd], None], announced: bool
) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "1000")
    monkeypatch.setenv("SOCKD_STORAGE_WAIT_S", "1000")
    s3.put("x", b"from S3")
    if announced:
        engine.sent(0, GET, "bkt", "x")
    later = threading.Timer(0.1, fate, (engine,))
    later.start()
    assert read(storage, "x") == b"from S3"
    later.join()


def test_more_than_was_sent_comes_from_the_network(storage: Any, engine: EngineEnd, s3: S3) -> None:
    s3.put("y", b"from S3")
    engine.message(0, b"zero", GET, "bkt", "x")
    engine.end()
    assert [read(storage, key) for key in ("x", "y", "y")] == [b"zero", b"from S3", b"from S3"]
    assert served(engine) == [REGION, NETWORK, NETWORK]


def test_the_second_request_of_a_sandbox_has_no_initscript(
    storage: Any, engine: EngineEnd, s3: S3, function: Callable[[str], ModuleType]
) -> None:
    s3.put("x", b"from S3")
    engine.message(0, b"zero" * 100_000, GET, "bkt", "x", own=True)
    engine.message(1, b"one", GET, "bkt", "x")
    kept = storage.download_stream("bkt", "x")
    function("sockd_initscript").expire()
    assert read(storage, "x") == b"from S3"
    assert bytes(kept) == b"zero" * 100_000
    assert served(engine) == [REGION]
    assert engine.receive() is None


@pytest.mark.parametrize("same", [True, False])
def test_after_what_may_be_a_write_the_engine_is_asked(
    storage: Any, engine: EngineEnd, s3: S3, observer: Observer, same: bool
) -> None:
    s3.put("x", b"new")
    for number in range(2):
        engine.message(number, b"old", GET, "bkt", "x")
    assert read(storage, "x") == b"old"
    observer.has_written = True
    engine.checked(1, same=same)
    engine.end()
    assert read(storage, "x") == (b"old" if same else b"new")
    assert served(engine) == [REGION, REGION if same else NETWORK]


def test_an_engine_that_cannot_be_asked_leaves_the_read_to_the_network(
    storage: Any, engine: EngineEnd, s3: S3, observer: Observer
) -> None:
    s3.put("x", b"new")
    engine.message(0, b"old", GET, "bkt", "x")
    engine.end()
    engine.close()
    observer.has_written = True
    assert read(storage, "x") == b"new"


@pytest.mark.parametrize("way", ["send_msg", "get_conn"])
def test_what_the_script_is_reported_may_make_it_write(
    storage: Any, engine: EngineEnd, s3: S3, function: Callable[[str], ModuleType], way: str
) -> None:
    s3.put("x", b"new")
    engine.message(0, b"old", GET, "bkt", "x")
    engine.checked(0, same=False)
    link = function("sockd_initscript").link()
    if way == "send_msg":
        link.send_msg(1, b"write")
    else:
        here, there = socket.socketpair()
        here.close()
        engine.push({"op": "connection", "id": 1, "addr": "tcp://h:1", "kind": "tcp"}, there.detach())
        link.get_conn(1, 10).sock.close()
    assert read(storage, "x") == b"new"


def test_a_reply_is_served_once(storage: Any, engine: EngineEnd, s3: S3) -> None:
    s3.put("x", b"from S3")
    engine.message(0, b"fetched", GET, "bkt", "x")
    assert [read(storage, "x"), read(storage, "x")] == [b"fetched", b"from S3"]
    assert served(engine) == [REGION, NETWORK]


def test_a_reply_is_served_for_a_time(
    storage: Any, engine: EngineEnd, s3: S3, observer: Observer, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_MAX_AGE_S", "5")
    s3.put("x", b"from S3")
    engine.message(0, b"fetched", GET, "bkt", "x")
    engine.message(1, b"fetched", GET, "bkt", "x")
    assert read(storage, "x") == b"fetched"
    observer.began_ns -= 5 * 10**9
    engine.checked(1, same=False)
    assert read(storage, "x") == b"from S3"


def test_in_a_process_that_is_not_observed_the_engine_is_asked(
    storage: Any, engine: EngineEnd, s3: S3, monkeypatch: Any
) -> None:
    monkeypatch.delitem(sys.modules, "sockd_zygote.handlers.egress")
    s3.put("x", b"from S3")
    for number, same in enumerate((True, False)):
        engine.message(number, b"fetched", GET, "bkt", "x")
        engine.checked(number, same=same)
    assert [read(storage, "x") for _ in range(2)] == [b"fetched", b"from S3"]


def test_a_list_of_what_was_written_is_made_anew(
    storage: Any, engine: EngineEnd, observer: Observer, s3: S3, tmp_path: Path
) -> None:
    engine.message(0, b"<ListBucketResult></ListBucketResult>", LIST, "bkt", "d/")
    engine.checked(0, same=False)
    observer.has_written = True
    key = storage.upload_stream("bkt", "d/x.txt", b"new")
    assert key.startswith("d/x.") and key.endswith(".txt")
    storage.download_directory("bkt", "d/", str(tmp_path))
    assert (tmp_path / key).read_bytes() == b"new"


def listing(*keys: str, more: str = "") -> bytes:
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    rest = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return f'<?xml version="1.0"?>\n<ListBucketResult xmlns="s3">{entries}{rest}</ListBucketResult>'.encode()


def test_a_directory_is_a_list_and_its_keys(storage: Any, engine: EngineEnd, tmp_path: Path) -> None:
    engine.message(0, listing("d/a", "d/", "d/e/f", "d/g&amp;&#104;"), LIST, "bkt", "d/")
    for number, key in enumerate(["d/a", "d/", "d/e/f", "d/g&h"], 1):
        engine.message(number, key.encode(), GET, "bkt", key)
    engine.message(5, b"after", GET, "bkt", "after")
    storage.storage.get_instance().download_directory("bkt", "d/", str(tmp_path))
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {key: key for key in ("d/a", "d/e/f", "d/g&h")}
    assert read(storage, "after") == b"after"
    assert served(engine) == [REGION] * 5


def test_each_page_of_a_list_is_a_read(storage: Any, engine: EngineEnd, tmp_path: Path) -> None:
    engine.message(0, listing("a", more="t&amp;1"), LIST, "bkt", "")
    engine.message(1, listing("c"), LIST, "bkt", "", "t&1")
    engine.message(2, b"A", GET, "bkt", "a")
    engine.message(3, b"C", GET, "bkt", "c")
    storage.download_directory("bkt", "", str(tmp_path))
    assert [(tmp_path / key).read_text() for key in "ac"] == ["A", "C"]
    assert set(served(engine)) == {REGION}


def test_what_is_no_list_is_asked_for_again(storage: Any, engine: EngineEnd, s3: S3, tmp_path: Path) -> None:
    s3.put("d/x", b"from S3")
    engine.message(0, b"<html>", LIST, "bkt", "d/")
    storage.download_directory("bkt", "d/", str(tmp_path))
    assert (tmp_path / "d/x").read_bytes() == b"from S3"


@pytest.mark.parametrize("prefetched", [True, False])
def test_an_empty_directory_is_an_error(storage: Any, engine: EngineEnd, s3: S3, prefetched: bool) -> None:
    if prefetched:
        engine.message(0, listing(), LIST, "bkt", "none/")
    engine.end()
    with pytest.raises(RuntimeError, match="none/"):
        storage.download_directory("bkt", "none/", "/nowhere")


def test_a_stream_is_not_copied(storage: Any, engine: EngineEnd) -> None:
    engine.message(0, b"x" * 300_000, GET, "bkt", "x", own=True)
    view = storage.download_stream("bkt", "x")
    assert isinstance(view, memoryview) and view.readonly
    assert type(view.obj).__name__ == "mmap"


def test_a_file_is_the_functions_own_and_replaces_what_was_there(
    storage: Any, engine: EngineEnd, tmp_path: Path
) -> None:
    target = tmp_path / "x"
    target.symlink_to("/nowhere")
    for number, own in enumerate((True, False)):
        engine.message(number, b"x" * 300_000, GET, "bkt", "x", own=own)
        storage.download("bkt", "x", str(target))
        assert not target.is_symlink()
        with target.open("r+b") as file:
            assert file.seek(-5, 2) == 299_995
            assert file.read() == b"xxxxx"
            file.write(b"y")
        assert subprocess.run(["tail", "-c", "2", target], capture_output=True).stdout == b"xy"
    assert os.listdir(tmp_path) == ["x"]


def test_no_file_is_left_where_there_is_no_room(storage: Any, engine: EngineEnd, tmp_path: Path) -> None:
    engine.message(0, b"x", GET, "bkt", "x")
    with pytest.raises(FileNotFoundError):
        storage.download("bkt", "x", str(tmp_path / "none" / "x"))
    assert os.listdir(tmp_path) == []


def test_a_link_is_a_file_without_a_copy(
    storage: Any, engine: EngineEnd, tmp_path: Path, monkeypatch: Any, function: Callable[[str], ModuleType]
) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_LINK", "1")
    engine.message(0, b"x" * 300_000, GET, "bkt", "x", own=True)
    engine.message(1, b"small", GET, "bkt", "y")
    storage.download("bkt", "x", str(tmp_path / "x"))
    storage.download("bkt", "y", str(tmp_path / "y"))
    assert (tmp_path / "x").is_symlink() and not (tmp_path / "y").is_symlink()
    link = function("sockd_initscript").link()
    segment = link._inbox.segments[0]
    function("sockd_initscript").expire()
    engine.close()
    assert subprocess.run(["tail", "-c", "2", tmp_path / "x"], capture_output=True).stdout == b"xx"
    assert (tmp_path / "y").read_bytes() == b"small"
    os.close(segment._fd)


@pytest.mark.root
def test_where_a_link_cannot_be_followed_a_copy_is_made(storage: Any, engine: EngineEnd, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOCKD_STORAGE_LINK", "1")
    engine.message(0, b"x" * 300_000, GET, "bkt", "x", own=True)
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest's own are closed to other users
        target = Path(directory, "x")
        os.chown(directory, 65534, -1)
        os.seteuid(65534)  # as in a sandbox: the segment is another user's, and its mode lets nobody else open it
        try:
            storage.download("bkt", "x", str(target))
        finally:
            os.seteuid(0)
        assert not target.is_symlink()
        assert target.read_bytes() == b"x" * 300_000
