"""Decorated functions without a worker: what is packed, what is sent, what an import costs, who may send pickles."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import itertools
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, assert_type

import pytest

import sockd
from sockd.base import call_signature
from sockd.base.config import PackageConfig
from sockd.base.errors import FunctionFailed, SockdError, TimedOut
from sockd.client import python as remote
from sockd.client.python import mapping, retrying, source, stand_in, values
from sockd.client.python.calling import Target, call, event_of
from sockd.client.python.connections import invoke
from sockd.client.python.errors import DeployFailed, NoWorker, RemoteError
from sockd.client.python.printed import without_failure
from sockd.client.python.remote_function import RemoteFunction
from sockd.functions.code.default_packages import are_mentioned
from sockd.observe.failure_log import failure_log

Import = Callable[..., ModuleType]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of this test's own, and no worker."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SOCKD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("SOCKD_URL", raising=False)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports files as a project of its own."""
    project = tmp_path / "project"
    monkeypatch.syspath_prepend(str(project))
    made: list[str] = []

    def write(text: str, module: str = "made_app", **files: str) -> ModuleType:
        path = project.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import sockd\n" + text)
        for name, content in files.items():
            (project / name.replace("__", ".")).write_text(content)
        importlib.invalidate_caches()
        made.append(module)
        return importlib.import_module(module)

    yield write
    for module in made:
        sys.modules.pop(module, None)


def packed(function: RemoteFunction[..., Any]) -> dict[str, str]:
    archive = zipfile.ZipFile(io.BytesIO(function._packed().archive))
    return {name: archive.read(name).decode() for name in archive.namelist()}


def test_importing_sockd_costs_nothing_and_knows_nothing_of_the_daemon() -> None:
    code = (
        "import sys; before = len(sys.modules); import sockd; print(len(sys.modules) - before)\n"
        "sockd.function(lambda: 1)\n"
        "print([name for name in sys.modules if name.startswith('sockd.') and not name.startswith('sockd.client.python')\n"
        "    and name not in ('sockd.base', 'sockd.client', 'sockd.base.call_signature', 'sockd.base.own_command',\n"
        "    'sockd.base.printable')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    added, ours = run.stdout.splitlines()
    assert int(added) <= 2 and ours == "[]"


def test_a_function_is_packed_with_its_directory_its_settings_and_the_stand_in(app: Import) -> None:
    module = app(
        "@sockd.function(packages=['six==1.0'], memory_mb=64, timeout_s=1.5, env={'A': 'b\"c'})\ndef f(x): return x\n",
        helper__py="HELP = 1\n",
        sockd__toml="nonsense",
    )
    files = packed(module.f)
    assert set(files) == {"made_app.py", "helper.py", "sockd.py", "sockd.toml", "requirements.txt"}
    assert files["requirements.txt"] == "six==1.0\n"
    assert 'handler = "sockd:handler"\nmemory_mb = 64\ntimeout_s = 1.5\n' in files["sockd.toml"]
    assert 'env = {"A" = "b\\"c"}' in files["sockd.toml"]
    assert module.f(3) == 3 == module.f.local(3) and module.f.__name__ == "f"


def test_secrets_are_left_out_and_a_deploy_warns_of_them(app: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    module = app("@sockd.function\ndef f(x): return x\n")
    directory = Path(str(module.__file__)).parent
    (directory / ".env").write_text("KEY=1\n")
    assert ".env" not in packed(module.f)
    answer = (200, b'{"result": {}}')
    monkeypatch.setattr("sockd.client.python.deploying.manage", lambda *arguments: answer)
    with pytest.warns(UserWarning, match=r"left out, as possible secrets: \.env; a line !/PATH in \.sockdignore"):
        module.f.deploy()
    (directory / ".sockdignore").write_text("!/.env\n")
    assert packed(module.f)[".env"] == "KEY=1\n"


def test_the_digest_changes_with_the_code_and_with_nothing_else(app: Import) -> None:
    module = app("@sockd.function\ndef f(x): return x\n")
    first = module.f._packed().digest
    assert module.f._packed().digest == first
    (Path(str(module.__file__)).parent / "data.txt").write_text("more")
    assert module.f._packed().digest != first


def test_a_function_gets_no_default_package_from_what_is_packed_with_it(app: Import, tmp_path: Path) -> None:
    module = app("@sockd.function\ndef f(x): return x\n")
    zipfile.ZipFile(io.BytesIO(module.f._packed().archive)).extractall(tmp_path / "code")
    assert not are_mentioned(PackageConfig().default, tmp_path / "code", [])
    (tmp_path / "code" / "helper.py").write_text("import boto3\n")
    assert are_mentioned(PackageConfig().default, tmp_path / "code", [])


def test_only_the_named_files_are_packed(app: Import) -> None:
    module = app("@sockd.function(files=['made_app.py'])\ndef f(x): return x\n", secret__txt="x")
    assert "secret.txt" not in packed(module.f)


def test_a_module_in_a_package_is_packed_from_the_top(app: Import) -> None:
    module = app("@sockd.function\ndef f(x): return x\n", module="made_package.inner.app")
    files = packed(module.f)
    assert "made_package/inner/app.py" in files
    assert "sys.modules['made_package.inner.app'].f" in files["sockd.py"]


def test_what_a_sandbox_could_not_import_is_refused(app: Import) -> None:
    module = app("def outer():\n    @sockd.function\n    def f(x): return x\n    return f\n")
    with pytest.raises(DeployFailed, match="top of a module"):
        source.place_of(module.outer().local)
    (Path(str(module.__file__)).parent / "sockd").mkdir()
    taken = app("@sockd.function\ndef g(x): return x\n", module="made_other")
    with pytest.raises(DeployFailed, match="holds a module `sockd`"):
        taken.g._packed()


KEY = bytes(range(32))
NONCE = "0" * 32
DEPLOYER = SimpleNamespace(_from_deployer=True)
ANYBODY = SimpleNamespace(_from_deployer=False)
PLAIN = [None, True, 1, -2.5, "é\ud800", [1, [2]], {"a": {"b": [None]}}]
SPECIAL = [(1, 2), {1: 2}, float("nan"), float("inf"), b"x", {1, 2}, [({},)]]


@pytest.mark.parametrize(
    ("value", "simple"), [(value, True) for value in PLAIN] + [(value, False) for value in SPECIAL]
)
def test_json_carries_what_it_gives_back_and_pickles_the_rest(value: Any, simple: bool) -> None:
    event = json.loads(event_of(Target("", "f", KEY, {}, []), (value,), {"k": value}))
    assert ("pickle" in event) is not simple
    is_call, (given,), kwargs = stand_in.arguments(event, DEPLOYER, "m", True)
    answer = json.loads(json.dumps(stand_in.answer(given, is_call, True)))
    got = answer["json"] if simple else values.unpickled(answer["pickle"], {})
    assert repr(got) == repr(value) == repr(kwargs["k"])


def test_anybody_may_call_with_plain_json_and_no_one_else_with_a_pickle() -> None:
    assert stand_in.arguments({"x": 1}, ANYBODY, "m", True) == (False, (), {"x": 1})
    assert stand_in.arguments(5, ANYBODY, "m", True) == (False, (5,), {})
    assert stand_in.answer((1,), False, True) == (1,)
    forged = {"sockd": 1, "pickle": values.pickled(((), {}))}
    with pytest.raises(stand_in.BadCall, match="not signed"):
        stand_in.arguments(forged, ANYBODY, "m", True)
    with pytest.raises(stand_in.BadCall, match="takes no pickles"):
        stand_in.arguments(forged, DEPLOYER, "m", False)
    with pytest.raises(TypeError, match="pickle=False"):
        stand_in.answer((1,), True, False)
    with pytest.raises(TypeError, match="pickle=False"):
        event_of(Target("", "f", None, {}, []), ((1,),), {})


@pytest.mark.parametrize("value", [lambda: 1, io.TextIOWrapper(io.BytesIO()), threading.Lock(), sys.stdout])
def test_what_has_no_pickle_is_a_type_error_on_both_sides(value: Any) -> None:
    with pytest.raises(TypeError, match="the arguments of f cannot be sent"):
        event_of(Target("", "f", KEY, {}, []), (value,), {})
    with pytest.raises(TypeError, match="the result cannot be sent"):
        stand_in.answer(value, True, True)


def test_no_key_is_in_the_code_of_a_function(app: Import) -> None:
    module = app("@sockd.function\ndef f(x): return x\n")
    archive = module.f._packed().archive
    key = values.key_of("f")
    assert not any(form in archive for form in (key, key.hex().encode(), repr(key).encode()))
    assert packed(module.f)["sockd.py"].endswith("sys.modules['made_app'].f, 'made_app', True)\n")


def test_a_signature_is_of_one_key_request_and_code() -> None:
    signed = call_signature.request_signature(KEY, "f", NONCE, "c", b"body")
    assert call_signature.verified_nonce(KEY, "f", signed, "c", b"body") == NONCE
    for wrong in [
        (bytes(32), "f", signed, "c", b"body"),
        (KEY, "g", signed, "c", b"body"),
        (KEY, "f", signed, "d", b"body"),
        (KEY, "f", signed, "c", b"other"),
        (KEY, "f", signed[:-1], "c", b"body"),
        (KEY, "f", "", "c", b"body"),
        (KEY, "f", f"{signed}\n", "c", b"body"),
    ]:
        assert call_signature.verified_nonce(*wrong) is None
    answer = call_signature.answer_signature(KEY, "f", NONCE, 200, b"answer")
    assert call_signature.is_answer_signed(KEY, "f", NONCE, 200, b"answer", answer)
    assert not call_signature.is_answer_signed(KEY, "f", "1" * 32, 200, b"answer", answer), "an answer of another call"
    assert not call_signature.is_answer_signed(KEY, "f", NONCE, 200, b"other", answer)
    assert not call_signature.is_answer_signed(KEY, "f", NONCE, 200, b"answer", "é")


def test_the_text_of_a_remote_error_is_fit_for_a_terminal() -> None:
    error = RemoteError("Bad\x1b]0;title\x07", "\x9b2Jgone\u202e", ["  File \x1b[1A\n"])
    assert str(error).isprintable() is False and not set(str(error)) & set("\x1b\x07\x9b\u202e")
    assert error.message == "\x9b2Jgone\u202e", "programs have it as it was"


def test_the_key_is_this_users_and_the_same_each_time(tmp_path: Path) -> None:
    assert values.key_of("f") == values.key_of("f") != values.key_of("g")
    assert (tmp_path / "config" / "sockd" / "remote.key").stat().st_mode & 0o777 == 0o600


def test_without_a_worker_the_error_says_what_to_do(app: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    module = app("@sockd.function\ndef f(x): return x\n")
    monkeypatch.setenv("SOCKD_URL", "http://127.0.0.1:1")
    with pytest.raises(sockd.NoWorker, match=r"start one: .*sockd up$"):
        module.f.remote(1)
    with pytest.raises(NoWorker, match="not a URL"):
        invoke("nonsense", "f", b"", {})


def test_a_map_keeps_the_order_and_stops_at_the_first_error() -> None:
    def call(each: int) -> int:
        if each == 3:
            raise RemoteError("ValueError", "three")
        return each * 2

    settings: Any = {"concurrency": 4, "label": None}
    assert mapping.run(call, (n for n in (5, 1, 2)), return_exceptions=False, **settings) == [10, 2, 4]
    reported = mapping.run(call, [3, 4], return_exceptions=True, **settings)
    assert isinstance(reported[0], RemoteError) and reported[1] == 8
    begun: list[int] = []

    def noted(each: int) -> int:
        begun.append(each)
        return call(each)

    with pytest.raises(RemoteError, match="three"):
        mapping.run(noted, range(100), return_exceptions=False, concurrency=1, label=None)
    assert begun == [0, 1, 2, 3]


def test_results_come_as_they_end_and_inputs_are_taken_as_results_are_read() -> None:
    second = threading.Event()
    taken: list[int] = []

    def inputs() -> Iterator[int]:
        for each in itertools.count():
            taken.append(each)
            yield each

    def call(each: int) -> int:
        if each == 0:
            assert second.wait(30)
        return each * 2

    ended = mapping.ended(call, inputs(), concurrency=2, return_exceptions=False, label=None)
    assert next(ended) == (1, 1, 2), "before the first input's"
    second.set()
    read: list[int] = []
    while 0 not in read:
        read.append(next(ended)[1])
    assert read == [*sorted({*read} - {0}), 0], "of one thread, in order"
    assert isinstance(ended, Generator)
    ended.close()
    for thread in [each for each in threading.enumerate() if each.name.startswith("sockd-map-")]:
        thread.join(30)
    assert len(taken) <= 1 + len(read) + 2 * 2 + 1


def test_results_that_are_there_come_before_the_first_error() -> None:
    def call(each: int) -> int:
        if each == 2:
            raise RemoteError("ValueError", "two")
        return each

    ended = mapping.ended(call, range(100), concurrency=1, return_exceptions=False, label=None)
    assert [next(ended)[1] for _ in range(2)] == [0, 1]
    with pytest.raises(RemoteError, match="two"):
        next(ended)


class Scripted(BaseHTTPRequestHandler):
    """Answers as the server's `script` says, one entry for each try; None: not at all."""

    def do_POST(self) -> None:
        server: Any = self.server
        server.tries.append({name.lower(): value for name, value in self.headers.items()})
        self.rfile.read(int(self.headers["content-length"]))
        status, headers, body = server.script.pop(0)
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return None


Scene = tuple[int | None, dict[str, str], bytes]
BUSY: Scene = (429, {"retry-after": "0"}, b'{"errorType": "TooManyRequestsException", "errorMessage": "busy"}')
LOST: Scene = (None, {}, b"")
ANSWER: Scene = (200, {}, b'{"sockd": 1, "json": 7}')
RAN: Scene = (503, {"retry-after": "0", "x-sockd-sandbox": "s"}, b'{"errorType": "X", "errorMessage": "it ran"}')
RAISED: Scene = (500, {}, b'{"errorType": "KeyError", "errorMessage": "no"}')


@contextmanager
def scripted(*script: Scene) -> Iterator[tuple[Target, list[dict[str, str]]]]:
    server: Any = HTTPServer(("127.0.0.1", 0), Scripted)
    server.script, server.tries = list(script), []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Target(f"http://127.0.0.1:{server.server_port}", "f", None, {}, ["0" * 64]), server.tries
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_call_that_has_no_answer_or_did_not_run_is_repeated_with_the_same_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrying, "PAUSE_S", (0.001, 0.01))
    with scripted(LOST, BUSY, ANSWER) as (target, tries):
        assert call(target, (1,), {}, retries=2) == 7
        assert len({each["idempotency-key"] for each in tries}) == 1 and len(tries) == 3
    with scripted(LOST, ANSWER) as (target, tries):
        with pytest.raises(NoWorker):
            call(target, (1,), {})
        assert len(tries) == 1 and "idempotency-key" not in tries[0], "nobody has asked for it"
    with scripted(LOST, BUSY, ANSWER) as (target, tries), pytest.raises(RemoteError, match="busy"):
        call(target, (1,), {}, retries=1)


@pytest.mark.parametrize("answer", [RAN, RAISED])
def test_a_call_that_ran_is_not_made_again(answer: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "PAUSE_S", (0.001, 0.01))
    with scripted(answer, ANSWER) as (target, tries):
        with pytest.raises(RemoteError):
            call(target, (1,), {}, retries=3)
        assert len(tries) == 1


def test_an_address_where_no_worker_can_be_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "PAUSE_S", (60.0, 60.0))
    with pytest.raises(NoWorker, match="not a URL"):
        call(Target("nonsense", "f", None, {}, []), (1,), {}, retries=3)


@sockd.function(retries=1)
def typed(x: int, y: int = 0) -> str:
    return str(x + y)


def checked_by_mypy() -> None:
    """Without the types of the client these would be Any."""
    assert_type(typed(1, y=2), str)
    assert_type(typed.remote(1), str)
    assert_type(typed.map([1]), list[str])
    assert_type(typed.starmap([(1, 2)]), list[str])
    assert_type(typed.as_completed([1]), Iterator[tuple[int, str]])
    assert_type(typed.spawn(1).result(), str)


def test_the_guide_has_the_whole_client() -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "guide" / "python.md").read_text()
    methods = [name for name in vars(RemoteFunction) if not name.startswith("_")]
    parameters = {*inspect.signature(sockd.function).parameters} - {"target", "settings"}
    parameters |= {*inspect.signature(RemoteFunction.as_completed).parameters} - {"self", "inputs"}
    for name in {*sockd.__all__, *methods, *parameters} - {"RemoteFunction"}:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", guide), name


def test_the_names_of_sockd_are_listed_and_known_to_type_checkers() -> None:
    assert dir(sockd) == sorted([*sockd.__all__, "__version__"]) and set(sockd.__all__) == set(remote.__all__)
    assert all(getattr(sockd, name) is getattr(remote, name) for name in sockd.__all__)
    directory = Path(sockd.__file__).parent
    stub = ast.parse((directory / "__init__.pyi").read_text())
    names = [alias.asname for each in stub.body if isinstance(each, ast.ImportFrom) for alias in each.names]
    assert sorted(filter(None, names)) == sockd.__all__ and (directory / "py.typed").exists()


def test_a_map_shows_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    mapping.run(abs, [1, 2, 3], concurrency=2, return_exceptions=False, label="counting")
    shown = capsys.readouterr().err
    assert "counting" in shown and "3/3" in shown


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "error", [TimedOut("Task timed out after 1.00 seconds", "timeout_s"), FunctionFailed("KeyError", "'x'", ["  at\n"])]
)
def test_a_failure_that_is_raised_is_not_shown_as_well(error: SockdError, as_json: bool) -> None:
    request_id = "0af76519-16cd-43dd-8448-eb211c80319c"
    log = failure_log(error, request_id, 1.0, as_json=as_json)
    for printed in (b"", b"first\n", f"of {request_id}\n".encode()):
        assert without_failure(printed + log, request_id, error.error_type) == printed
    assert without_failure(b"first\n", request_id, error.error_type) == b"first\n"
