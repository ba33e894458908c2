"""The engine: a guest's whole life, what the app and the daemon hear of it, and how runs keep out of each other's way."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sockd_initscripts.limits import EngineLimits
from tests.initscripts.guests import GET, LOOP, TIRELESS, module
from tests.initscripts.rooms import Room, http_server, room

pytestmark = pytest.mark.anyio
SENT = "(drop (call $send_bytes (i64.const 1) (i32.const 0) (i32.const 1)))"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Room]:
    async with room(tmp_path) as made:
        yield made


WAIT = "(call $note (call $recv_msg (i64.const 1) (i32.const 1024)))"
"""For a message of the app, which tests do not send."""


AGAIN = GET.split("\n", 2)[2].replace("i64.const 7", "i64.const 8")
"""The same RPC under another number."""


async def test_a_guest_that_returns_exits_with_zero(here: Room) -> None:
    ran = await here.run(module("", notes=False))
    assert (ran.report.outcome, ran.report.status) == ("exit", 0)
    assert ran.app.said == [{"op": "end", "outcome": "exit", "status": 0}]


async def test_exit_ends_the_guest_where_it_is_called(here: Room) -> None:
    ran = await here.run(module(f"(call $exit (i32.const -3)) {LOOP}"))
    assert (ran.report.outcome, ran.report.status) == ("exit", -3)


async def test_a_reply_goes_on_to_the_app(here: Room) -> None:
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(GET, address=server.address, method="GET /hello"))
    rpc = ["http.GET /hello", server.address]
    assert ran.app.notes == [0, 0, 200, 0]
    assert ran.app.contents[7] == b"hello"
    assert ran.app.said[:2] == [
        {"op": "sent", "id": 7, "rpc": rpc},
        {
            "op": "message",
            "id": 7,
            "rpc": rpc,
            "status": 200,
            "segment": 0,
            "offset": 0,
            "length": 5,
            "size": 1024 * 1024,
            "headers": {"content-length": "5"},
        },
    ]
    (record,) = ran.report.rpcs
    assert (record.descriptor, record.status, record.bytes, record.connection) == (rpc, 200, 5, "new")
    times = [ran.report.arrived_ns, ran.report.started_ns, record.queued_ns, record.sent_ns, record.first_byte_ns]
    times += [record.done_ns, ran.report.messages[0].sent_ns, ran.report.ended_ns]
    assert times == sorted(times)
    assert [(message.id, message.bytes) for message in ran.report.messages] == [(7, 5), (99, 16)]


async def test_what_the_function_has_read_before_is_not_fetched_again(here: Room) -> None:
    async with http_server(hello=b"hello") as server:
        function = here.define(module(GET + AGAIN, address=server.address, method="GET /hello"))
        known = (("http.GET /hello", server.address),)
        ran = await here.finish(*here.start(function, known=known))
        assert server.requests == ["/hello"]
    assert ran.app.notes == [0, 0, 304, 0, 0, 0, 200, 0]
    assert (ran.app.contents[7], ran.app.contents[8]) == (b"", b"hello")
    assert [(record.id, record.status, record.bytes) for record in ran.report.rpcs] == [(7, 304, 0), (8, 200, 5)]
    assert ran.report.rpcs[0].descriptor == list(known[0])


async def test_a_large_reply_has_a_segment_of_its_own_and_slices_of_it_are_messages(here: Room) -> None:
    content = os.urandom(1_000_000)
    body = GET + "(call $note (call $send_msg (i64.const 8) (i32.load (i32.const 1024)) (i64.const 10) (i64.const 20)))"
    async with http_server(large=content) as server:
        ran = await here.run(module(body, address=server.address, method="GET /large"))
    assert ran.app.contents[7] == content
    assert ran.app.contents[8] == content[10:30]
    first, second = ran.app.said[1:3]
    assert (first["segment"], second["segment"], second["offset"]) == (0, 0, 10)
    assert "size" in first and "size" not in second  # the fd came once


async def test_the_engine_unmaps_what_it_sent_while_the_app_still_has_it(here: Room) -> None:
    content = os.urandom(1_000_000)
    async with http_server(large=content) as server:
        run, app = here.start(here.define(module(GET, address=server.address, method="GET /large")))
        await app.until("end")
        while not run.is_lingering:
            await asyncio.sleep(0)
        mappings = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:sockd-region" in line]
        assert len(mappings) == 2 and all(" r--s " in line for line in mappings)  # the app's: it is us, too
        assert app.contents[7] == content
        assert not run.done.done()
        app.close()
        await run.done


async def test_a_connection_is_kept_for_the_next_run(here: Room) -> None:
    async with http_server(hello=b"hello") as server:
        wasm = module(GET, address=server.address, method="GET /hello")
        function = here.define(wasm)
        reports = [(await here.finish(*here.start(function))).report for _ in range(3)]
        assert len(server.peers) == 1
    assert [report.rpcs[0].connection for report in reports] == ["new", "kept", "kept"]


async def test_a_guest_writes_its_first_request_while_the_loop_is_elsewhere(here: Room) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wasm = module(GET, address=f"http://127.0.0.1:{listener.getsockname()[1]}", method="GET /hello")
        function = here.define(wasm)
        first, app = here.start(function)
        accepted, _ = await asyncio.to_thread(listener.accept)
        with accepted:
            accepted.settimeout(10)
            reply = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
            await asyncio.to_thread(accepted.recv, 4096)
            accepted.sendall(reply)
            await here.finish(first, app)
            second, app = here.start(function)
            request = accepted.recv(4096)  # in the loop's own thread, which does nothing else meanwhile
            assert request.startswith(b"GET /hello HTTP/1.1\r\n")
            accepted.sendall(reply)
            ran = await here.finish(second, app)
    assert ran.app.contents[7] == b"hello"
    assert ran.app.ops == ["sent", "message", "message", "end"]
    assert ran.report.rpcs[0].connection == "kept"


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_guest_that_does_not_wait_for_its_writes_leaves_no_connection_behind(
    here: Room, is_answered: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        send = (
            "(call $note (call $send_rpc (call $connect @address) (i64.const 7) @method (i32.const 0) (i32.const 0)))"
        )
        receive = "(call $note (call $recv_rpc_reply (i32.const 0) (i64.const 7) (i32.const 1024)))"
        wait = f"(if (i32.eq (call $input_len) (i32.const 4)) (then {receive}))"
        function = here.define(module(send + wait, address=address, method="GET /hello"))
        first, app = here.start(function, b"wait")
        accepted, _ = await asyncio.to_thread(listener.accept)
        with accepted:
            accepted.settimeout(10)
            reply = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
            await asyncio.to_thread(accepted.recv, 4096)
            accepted.sendall(reply)
            await here.finish(first, app)
            second, app = here.start(function, b"")
            assert accepted.recv(4096)
            if is_answered:
                accepted.sendall(reply)
            ran = await here.finish(second, app)
            (record,) = ran.report.rpcs
            assert ran.report.outcome == "exit"
            if not is_answered:
                assert record.status == -errno.ECANCELED
                assert await asyncio.to_thread(accepted.recv, 1) == b""


async def test_every_run_has_a_memory_of_its_own(here: Room) -> None:
    body = """
        (call $note (i32.load (i32.const 512)))
        (i32.store (i32.const 512) (i32.const 7))
        (call $note (memory.grow (i32.const 1)))
        (call $note (global.get $counted))
        (global.set $counted (i32.const 5))"""
    function = here.define(module(body, extra="(global $counted (mut i32) (i32.const 3))"))
    for _ in range(4):
        assert (await here.finish(*here.start(function))).app.notes == [0, 1, 3]


async def test_where_guests_connected_is_connected_to_ahead(here: Room) -> None:
    connected: list[str] = []

    class Counting:
        """A dialer that counts."""

        def __init__(self, dialer: Any) -> None:
            self._dialer = dialer
            self.adopt, self.reserve = dialer.adopt, dialer.reserve

        def connect(self, address: str) -> Any:
            connected.append(address)
            return self._dialer.connect(address)

    async with http_server(hello=b"hello") as server, http_server(hello=b"hello") as other:
        here.engine._make_dialer = lambda definition: Counting(here.engine._dial(definition))
        function = here.define(module(GET, address=server.address, method="GET /hello"))
        for count in (1, 2, 3):
            ran = await here.finish(*here.start(function))
            assert ran.app.notes == [0, 0, 200, 0]
            # What is kept is taken by the guest's own thread: the loop is asked to connect once.
            assert connected == [server.address] and (ran.report.rpcs[0].connection == "kept") == (count > 1)
        denied = module("(call $note (call $connect @address))", address="http://169.254.1.1")
        function = here.define(denied)
        for _ in range(2):
            assert (await here.finish(*here.start(function))).app.notes == [-errno.EACCES]
        assert other.peers == []


async def test_the_event_is_the_guests_input(here: Room) -> None:
    body = """
        (call $note (call $input_len))
        (call $note (call $input_read (i32.const 2) (i32.const 512) (i32.const 100)))
        (call $note (call $input_read (i32.const 5) (i32.const 512) (i32.const 100)))
        (call $note (call $input_read (i32.const 50) (i32.const 512) (i32.const 100)))
        (call $note (call $send_bytes (i64.const 1) (i32.const 512) (i32.const 3)))"""
    ran = await here.run(module(body), b"hello")
    assert ran.app.notes == [5, 3, 0, 0, 0]
    assert ran.app.contents[1] == b"llo"
    ran = await here.run(module(body), b"hello", static_args=b"bye")
    assert ran.app.notes[:2] == [3, 1]


async def test_a_large_event_comes_as_a_memfd(here: Room) -> None:
    fd = os.memfd_create("event")
    os.write(fd, b"x" * 100_000 + b"end")
    body = """
        (call $note (call $input_len))
        (call $note (call $input_read (i32.const 100000) (i32.const 512) (i32.const 100)))
        (call $note (call $send_bytes (i64.const 1) (i32.const 512) (i32.const 3)))"""
    ran = await here.run(module(body), fd)
    assert ran.app.notes == [100_003, 3, 0]
    assert ran.app.contents[1] == b"end"


async def test_what_a_guest_logs_is_in_the_report_up_to_a_limit(here: Room) -> None:
    ran = await here.run(module("(call $log (i32.const 2) @text) (call $log (i32.const 9) @text)", text="done\xff"))
    assert ran.report.log == "info: doneÿ\n9: doneÿ\n"
    forever = f"(loop $more (call $log (i32.const 0) @text) (br_if $more (i32.lt_u {COUNT} (i32.const 9999))))"
    ran = await here.run(module(forever, text="x" * 1000))
    assert 15_000 < len(ran.report.log) <= 16 * 1024


COUNT = "(local.tee $b (i32.add (local.get $b) (i32.const 1)))"


async def test_an_abort_is_reported_before_the_run_is_over(here: Room) -> None:
    run, app = here.start(here.define(module("(call $abort_launch (i32.const 4) @why)", why="no work")))
    assert await app.until("end") == {"op": "end", "outcome": "abort", "status": 4}
    assert here.aborts == [(run.id, 4, "no work")]
    assert not run.done.done()
    app.close()
    report = await run.done
    assert (report.outcome, report.status, report.message) == ("abort", 4, "no work")


async def test_the_report_waits_for_the_apps_last_word(here: Room) -> None:
    run, app = here.start(here.define(module("")))
    await app.until("end")
    read = {"op": "read", "rpc": ["s3.GetObject", "b", "k"], "served": "region", "start_ns": 1, "end_ns": 2}
    app.say(read)
    assert not run.done.done()
    app.close()
    report = await run.done
    assert [(seen.rpc, seen.served, seen.start_ns, seen.end_ns) for seen in report.reads] == [
        (["s3.GetObject", "b", "k"], "region", 1, 2)
    ]


async def test_what_an_app_said_before_its_run_was_cancelled_is_in_the_report(here: Room) -> None:
    for wasm in (module(""), module(WAIT), None):
        run, app = here.start(here.define(wasm))
        for number in range(100):  # more than are read in one turn of the loop
            app.say({"op": "read", "rpc": ["s3.GetObject"], "served": "region", "start_ns": number, "end_ns": number})
        here.engine.cancel(run.id)  # in the same step: the loop has not looked at the link yet
        report = await run.done
        assert [seen.start_ns for seen in report.reads] == list(range(100))
        app.close()


async def test_without_a_module_reads_are_recorded(here: Room) -> None:
    run, app = here.start(here.define(None))
    app.say({"op": "read", "rpc": ["s3.GetObject", "b", "k"], "served": "network", "start_ns": 1, "end_ns": 2})
    app.close()
    report = await run.done
    assert (report.outcome, len(report.reads), report.started_ns) == ("record", 1, 0)


async def test_what_breaks_the_app_links_protocol_ends_the_run(here: Room) -> None:
    for garbage in (b"garbage", b'{"op":"end","outcome":"exit","status":0}\n', b'{"op":"read","rpc":[1]}\n'):
        run, app = here.start(here.define(module(WAIT)))
        app.sock.send(garbage)
        assert (await run.done).outcome == "cancelled"
        app.close()


async def test_an_app_that_goes_away_cancels_the_guest(here: Room) -> None:
    for body in (LOOP, WAIT):
        run, app = here.start(here.define(module(body), budget=TIRELESS))
        app.close()
        report = await run.done
        assert (report.outcome, report.message) == ("cancelled", "the app has gone")
        assert here.engine.busy == 0


async def test_the_daemon_cancels(here: Room) -> None:
    for body in (LOOP, WAIT):
        run, app = here.start(here.define(module(body), budget=TIRELESS))
        here.engine.cancel(run.id)
        assert (await run.done).outcome == "cancelled"
        app.close()
    here.engine.cancel(12345)


async def test_a_cancelled_run_that_waits_for_a_reply(here: Room) -> None:
    never = asyncio.Event()
    async with http_server(slow=never.wait) as server:
        run, app = here.start(here.define(module(GET, address=server.address, method="GET /slow")))
        await server.asked.wait()
        here.engine.cancel(run.id)
        report = await run.done
        app.close()
    assert report.outcome == "cancelled"
    assert report.rpcs[0].status < 0


async def test_a_function_no_one_defined(here: Room) -> None:
    run, app = here.start(12345)
    assert (await app.until("end"))["outcome"] == "bad_module"
    assert await app.next() is None
    assert "not defined" in (await run.done).message
    app.close()


async def test_one_run_too_many_is_busy_at_once(tmp_path: Path) -> None:
    async with room(tmp_path, limits=EngineLimits(runs=2)) as here:
        function = here.define(module(WAIT))
        going = [here.start(function) for _ in range(2)]
        run, app = here.start(function)
        assert run.done.done() and run.done.result().outcome == "busy"
        assert (await app.until("end"))["outcome"] == "busy"
        app.close()
        for run, app in going:
            here.engine.cancel(run.id)
            await run.done
            app.close()
        assert (await here.run(module(""))).report.outcome == "exit"


async def test_links_are_bounded_and_the_oldest_that_has_ended_goes(tmp_path: Path) -> None:
    async with room(tmp_path, limits=EngineLimits(links=2)) as here:
        ended, waiting = here.define(module("")), here.define(module(WAIT))
        first, first_app = here.start(ended)
        while not first.is_lingering:  # the app hears of the end before the run has let go of everything
            await asyncio.sleep(0)
        second, second_app = here.start(waiting)
        third, third_app = here.start(waiting)
        assert (await first.done).outcome == "exit"
        fourth, fourth_app = here.start(waiting)
        assert fourth.done.result().outcome == "busy"
        for run in (second, third):
            here.engine.cancel(run.id)
            await run.done
        for app in (first_app, second_app, third_app, fourth_app):
            app.close()


async def test_a_blocked_guest_and_a_spinning_one_hold_up_no_one(here: Room) -> None:
    blocked = [here.start(here.define(module(body), budget=TIRELESS)) for body in (WAIT, LOOP, WAIT)]
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(GET, address=server.address, method="GET /hello"))
    assert ran.app.contents[7] == b"hello"
    for run, app in blocked:
        assert not run.done.done()
        here.engine.cancel(run.id)
        await run.done
        app.close()


async def test_stopping_one_guest_leaves_the_others_spinning(here: Room) -> None:
    function = here.define(module(LOOP), budget=TIRELESS)
    runs = [here.start(function) for _ in range(3)]
    here.engine.cancel(runs[0][0].id)
    await runs[0][0].done
    assert [run.done.done() for run, _ in runs] == [True, False, False]
    for run, _ in runs[1:]:
        here.engine.cancel(run.id)
        await run.done
    for _, app in runs:
        app.close()


async def test_a_guest_that_has_missed_its_stop_is_stopped_again(here: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that decided to go on, and has not gone on yet, when the epoch is raised."""
    run, app = here.start(here.define(module(f"{SENT} {LOOP}"), budget=TIRELESS))
    await app.until("message")
    machine, missed = here.engine._machine, asyncio.Event()
    interrupt = machine.interrupt
    monkeypatch.setattr(machine, "interrupt", lambda: interrupt() if missed.is_set() else missed.set())
    here.engine.cancel(run.id)
    async with asyncio.timeout(5):
        await run.done
    assert missed.is_set()
    app.close()


async def test_handles_mean_nothing_in_another_run(here: Room) -> None:
    async with http_server(hello=b"secret") as server:
        first, app = here.start(here.define(module(GET + WAIT, address=server.address, method="GET /hello")))
        while 7 not in app.contents:
            await app.next()
        # The first run goes on, and has a handle.
        body = "".join(f"(call $note (call $buf_read (i32.const {n}) (i64.const 0) (i32.const 0) (i32.const 6)))" for n in (-1, 0, 1, 2))  # fmt: skip  # noqa: E501
        assert (await here.run(module(body))).app.notes == [-9, -9, -9, -9]
        here.engine.cancel(first.id)
        await first.done
        app.close()


async def test_a_module_that_was_unloaded_is_loaded_again(tmp_path: Path) -> None:
    async with room(tmp_path, limits=EngineLimits(modules=1)) as here:
        functions = [here.define(module(f"(call $exit (i32.const {number}))")) for number in range(3)]
        for _ in range(2):
            for number, function in enumerate(functions):
                assert (await here.finish(*here.start(function))).report.status == number


async def test_a_definition_replaces_the_one_before_and_forget_ends_it(here: Room) -> None:
    function = here.define(module("(call $exit (i32.const 1))"))
    here.engine.forget(function)
    run, app = here.start(function)
    assert run.done.result().outcome == "bad_module"
    app.close()
    here.engine.forget(function)


async def test_forgetting_a_function_does_not_end_its_run(here: Room) -> None:
    function = here.define(module("(drop (call $send_bytes (i64.const 2) @text))" + WAIT, text="started"))
    run, app = here.start(function)
    await app.until("message")
    here.engine.forget(function)
    app.say({"op": "message", "id": 1}, b"go on")
    assert (await here.finish(run, app)).report.outcome == "exit"


async def test_too_many_definitions_are_refused(tmp_path: Path) -> None:
    async with room(tmp_path, limits=EngineLimits(functions=1)) as here:
        here.define(None)
        with pytest.raises(ValueError):
            here.define(None)


async def test_closing_the_engine_ends_what_runs(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        runs = [here.start(here.define(module(body), budget=TIRELESS)) for body in (LOOP, WAIT)]
    for run, app in runs:
        assert run.done.result().outcome == "cancelled"
        app.close()
