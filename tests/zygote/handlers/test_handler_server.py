"""The loop of a handler sandbox, alone in an ordinary process: we are the daemon at the other end of the channel."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from sockd_zygote import protocol
from sockd_zygote.handlers import handler_server
from sockd_zygote.handlers.import_hooks import ImportTimer
from sockd_zygote.protocol import FAILED, INIT, INVOCATION, INVOKE, MODULES, READY, RESULT, TIMES
from tests.zygote.handler_process import ECHO, REPOSITORY, Server


def test_requests_are_answered_in_order(server: Server) -> None:
    server.init(ECHO)
    for number in (10, 11, 12):
        server.invoke(number, {"n": number})
    assert len(server.expect(READY, 3)) == TIMES.size
    assert json.loads(server.expect(MODULES, 10)) == []
    assert server.answer(10) == {"n": 10}
    assert [server.answer(11), server.answer(12)] == [{"n": 11}, {"n": 12}]
    assert server.end() == (0, b"")


@pytest.mark.parametrize("server", ["warm"], indirect=True)
def test_a_spare_waits_for_its_code(server: Server) -> None:
    server.init("print('too early')\n" + ECHO, mounted=False)
    server.invoke(10)
    assert server.receive() is None
    assert server.end() == (1, b"")


@pytest.mark.parametrize("server", ["warm"], indirect=True)
def test_a_spare_whose_code_never_comes_ends(server: Server) -> None:
    server.init("print('too early')\n" + ECHO, mounted=False)
    assert server.end() == (1, b"")


def test_it_ends_in_peace_when_no_one_wants_it(server: Server) -> None:
    assert server.end() == (0, b"")


@pytest.mark.parametrize("cut", [1, 15, 16, 20])
def test_it_ends_in_peace_when_the_daemon_dies_in_the_middle_of_a_frame(server: Server, cut: int) -> None:
    server.send_raw(protocol.encode_frame(INIT, 1, b"{} and more")[:cut])
    assert server.end() == (0, b"")


@pytest.mark.parametrize("frame", [(INVOKE, 1, b""), (READY, 1, b""), (RESULT, 1, b"")])
def test_anything_before_init_is_an_error(server: Server, frame: tuple[int, int, bytes]) -> None:
    server.send(*frame)
    assert server.receive() is None
    assert server.end()[0] == 1


def test_anything_but_invoke_after_init_is_an_error(server: Server) -> None:
    server.init(ECHO)
    server.expect(READY, 3)
    server.init(ECHO, mounted=False)
    assert server.receive() is None
    assert server.end()[0] == 1


def test_garbage_is_an_error(server: Server) -> None:
    server.send_raw(b"\xff" * 16)
    assert server.receive() is None
    assert server.end()[0] == 1


def test_a_large_request_comes_in_pieces(server: Server) -> None:
    server.init("def handler(event): return len(event)\n")
    server.expect(READY, 3)
    server.invoke(1, "x" * 5_000_000)
    assert server.answer(1) == 5_000_000


def test_the_function_sees_its_environment_its_code_and_its_directory(server: Server) -> None:
    server.init("import os, sys\ndef handler(event): return os.environ['OWN'], os.getcwd(), sys.path[0]\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == ["1", str(server.code), str(server.code)]


def test_the_request_id_is_the_uuid_of_the_request(server: Server) -> None:
    server.init("def handler(event, context): return context.aws_request_id\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_an_init_that_raises_is_reported_and_ends_it(server: Server) -> None:
    server.init("raise LookupError('at import')\n")
    server.invoke(1)
    failed = server.answer(3, FAILED)
    assert (failed["errorType"], failed["errorMessage"]) == ("LookupError", "at import")
    assert "f.py" in failed["stackTrace"][-1]
    assert server.end()[0] == 1


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [("0", 0, ""), ("3", 3, ""), ("'no configuration'", 1, "no configuration\n"), ("None", 0, ""), ("256 + 5", 5, "")],
)
def test_sys_exit_is_its_exit_status_and_prints_its_message(
    server: Server, code: str, status: int, message: str
) -> None:
    server.init(f"import sys\ndef handler(event):\n    print('bye')\n    sys.exit({code})\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.receive() is None
    assert server.end() == (status, f"bye\n{message}".encode())


def test_a_message_of_sys_exit_that_cannot_be_printed_ends_it_all_the_same(server: Server) -> None:
    bad = "class Bad:\n    def __str__(self): raise ValueError\n"
    server.init(f"import sys\n{bad}def handler(event):\n    sys.exit(Bad())\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.receive() is None
    assert server.end() == (1, b"")


def test_exit_handlers_of_the_zygotes_packages_do_not_run(server: Server) -> None:
    server.init("import atexit, sys\natexit.register(print, 'never')\ndef handler(event): sys.exit(0)\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.receive() is None
    assert server.end() == (0, b"")


def test_pth_files_and_paths_come_after_the_code(server: Server, tmp_path: Path) -> None:
    site, linked = tmp_path / "site", tmp_path / "linked"
    site.mkdir()
    linked.mkdir()
    (site / "some.pth").write_text(f"{linked}\nimport sys; sys.from_pth = 1\n")
    (linked / "there.py").write_text("x = 5\n")
    source = "import sys, there\ndef handler(event): return there.x, sys.from_pth, sys.path[:2]\n"
    server.init(source, paths=[str(site)], pth=[str(site)])
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == [5, 1, [str(tmp_path), str(site)]]


@pytest.mark.parametrize(
    "oddity",
    [
        "del sys.modules['late']",
        "sys.modules['late'] = None",
        "sys.modules['late'] = type('Proxy', (), {'__getattr__': lambda self, name: 1 / 0})()",
        "late.__spec__ = 5",
        "sys.modules[5] = 5",
    ],
)
def test_odd_modules_do_not_end_it(server: Server, oddity: str) -> None:
    (server.code / "late.py").write_text("")
    source = f"import sys\ndef handler(event):\n    if event == 'two': return event\n    import late\n    {oddity}\n"
    server.init(source + "    return event\n")
    server.invoke(1, "one")
    server.expect(READY, 3)
    server.expect(MODULES, 1)
    assert server.answer(1) == "one"
    server.invoke(2, "two")
    assert server.answer(2) == "two"


def test_the_storage_library_is_ours_when_the_function_says_so(server: Server) -> None:
    package = server.code / "function"
    package.mkdir()
    (package / "storage.py").write_text("raise AssertionError\n")
    (package / "function.py").write_text("from . import storage\ndef handler(event): return storage.__file__\n")
    server.init("", handler="function.function:handler", storage="sockd")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == str(REPOSITORY / "storage_lib" / "storage.py")


def test_and_the_packages_own_when_it_does_not(server: Server) -> None:
    (server.code / "storage.py").write_text("OWN = 1\n")
    server.init("import storage\ndef handler(event): return storage.OWN\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == 1


TOLD = """
import os
def handler(event, context):
    c = context.client_context
    return [event, os.environ.get("_X_AMZN_TRACE_ID"), context.invoked_function_arn[-2:], c and (c.custom, c.client.app_title)]
"""


def test_details_are_reported_for_one_request(server: Server) -> None:
    server.init(TOLD)
    server.expect(READY, 3)
    details = json.dumps(
        {"trace": "Root=1", "arn": "x:y", "client_context": {"custom": 1, "client": {"app_title": "t"}}}
    )
    server.send(INVOKE, 10, INVOCATION.pack(bytes(16), 10**9, len(details)), details.encode(), b"7")
    assert server.answer(10) == [7, "Root=1", ":y", [1, "t"]]
    server.invoke(11, 8)
    assert server.answer(11) == [8, None, ":f", None]


def test_a_report_of_imports_has_no_more_than_its_frame_may(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, length in ((10, 10), (6000, 10), (4000, 200)):
        names = [f"{number:0{length}}" for number in range(count)]
        for name in names:
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None, origin=f"/packages/key/{name}.py")
            monkeypatch.setitem(sys.modules, name, module)
        timer = ImportTimer()
        timer.start()
        timer.seconds.update(dict.fromkeys(names, 0.123457))
        body = handler_server.stop_timing(timer)
        reported = json.loads(body)
        assert len(body) <= protocol.MODULES_MAX_BYTES and len(reported) <= protocol.MODULES_MAX
        assert reported == [["key", name, 0.123457] for name in names[: len(reported)]]
        assert len(reported) >= min(count, 400)


def test_a_function_may_replace_json_dumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the runtime tells of the function is not made with the function's own."""
    monkeypatch.setattr(json, "dumps", lambda *args, **kwargs: "mine")
    timer = ImportTimer()
    timer.seconds = {"sys": 0.1}
    assert json.loads(handler_server.too_large(5))["errorType"] == "Function.ResponseSizeTooLarge"
    assert json.loads(handler_server.stop_timing(timer)) == []
