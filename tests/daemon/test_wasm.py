"""Functions that are WebAssembly modules, of a whole daemon: what they are given and answer, and what ends them."""

from __future__ import annotations

import importlib.metadata
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from benchmarks.s3.process import S3Process
from sockd_zygote.handlers.wasm.runtime import compiled_path
from tests.daemon.aws_client import KEYS, client_of
from tests.daemon.prefetching import fetching, patient
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.cases import case
from tests.support.servers.package_index import PackageIndex
from tests.support.wasm_modules import (
    COMMAND,
    COMMAND_COMPONENT,
    HANDLER_COMPONENT,
    READS_MESSAGE,
    handler_component,
    runtime_wheel,
)

pytestmark = pytest.mark.root

TRIES = 5
"""On a busy machine the worker may be first to end a loop, by killing the sandbox."""
WASMTIME = importlib.metadata.version("wasmtime")


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """An index that has the runtime."""
    index = PackageIndex()
    name, data = runtime_wheel()
    index.files[name] = data
    yield index
    index.close()


@pytest.fixture(scope="module")
def config() -> str:
    """One whose API of AWS has a key."""
    return KEYS


@pytest.fixture(scope="module")
def command(daemon: RunningDaemon) -> str:
    """A deployed command, and a component of each kind."""
    for name, module in (("command", COMMAND), ("component", COMMAND_COMPONENT), ("handler", HANDLER_COMPONENT)):
        daemon.deploy(name, {"fn.wasm": bytes(module)}, runtime="wasm", timeout_s=1, memory_mb=64)
    return "command"


@pytest.mark.parametrize("name", ["command", "component", "handler"])
def test_the_event_goes_in_and_the_answer_comes_out(daemon: RunningDaemon, command: str, name: str) -> None:
    assert daemon.call(name, {"a": "ä" * 500}) == {"a": "ä" * 500}
    assert daemon.run(name, {"b": 2}).headers["x-sockd-cold"] == "0"


def test_each_request_has_an_instance_of_its_own(daemon: RunningDaemon, command: str) -> None:
    answers = [daemon.run(command, "Count") for _ in range(3)]
    assert [answer.json for answer in answers] == [1, 1, 1]
    assert answers[-1].headers["x-sockd-cold"] == "0"


def test_standard_error_is_the_log_of_the_request(daemon: RunningDaemon, command: str) -> None:
    answer = daemon.run(command, "Echo")
    assert daemon.log_of(command, answer) == "a line of the log\n"


@case("V2", "a guest traps, exits, fails, answers without end", expect="a typed error; its sandbox goes on")
@pytest.mark.parametrize(
    ("name", "event", "kind", "message"),
    [
        ("command", "Trap", "Runtime.WasmTrap", "wasm `unreachable` instruction executed"),
        ("command", "Xit", "Runtime.ExitError", "exit status 3"),
        ("command", "B", "Function.ResponseSizeTooLarge", "exceeded maximum"),
        ("component", "Xit", "HandlerError", "wasi:cli/run returned an error"),
        ("handler", "Trap", "Runtime.WasmTrap", "wasm `unreachable` instruction executed"),
        ("handler", "Xit", "HandlerError", '"Xit"'),
    ],
)
def test_a_guest_that_fails_has_a_typed_error_and_its_sandbox_goes_on(
    daemon: RunningDaemon, command: str, name: str, event: str, kind: str, message: str
) -> None:
    daemon.call(name, {})
    failed = daemon.run(name, event)
    assert (
        failed.status in (500, 413, 502) and failed.json["errorType"] == kind and message in failed.json["errorMessage"]
    )
    assert daemon.run(name, {}).headers["x-sockd-cold"] == "0"


@case("V1", "a guest loops without end", expect="504 at its deadline; its sandbox goes on")
@pytest.mark.parametrize("name", ["command", "handler"])
def test_an_endless_loop_ends_at_its_deadline_and_its_sandbox_goes_on(
    daemon: RunningDaemon, command: str, name: str
) -> None:
    daemon.call(name, {})
    for _ in range(TRIES):
        begun = time.monotonic()
        answer = daemon.run(name, "Loop")
        assert 0.9 < time.monotonic() - begun < 2.5
        assert answer.status == 504 and answer.json["errorType"] == "Sandbox.Timedout"
        assert answer.json["errorMessage"] == "Task timed out after 1.00 seconds (timeout_s)"
        if daemon.run(name, {}).headers["x-sockd-cold"] == "0":
            break
    assert "fn.wasm was interrupted at its deadline, in:\n  0:" in daemon.log_of(name, answer)


def test_linear_memory_ends_below_the_limit_of_the_sandbox(daemon: RunningDaemon, command: str) -> None:
    assert daemon.call(command, "Memory") == 32


def test_a_start_is_forked_from_a_zygote_that_has_imported_the_runtime(daemon: RunningDaemon, command: str) -> None:
    daemon.call(command, {})
    answer = daemon.run_learned(command, {})
    assert daemon.node(f"wasmtime=={WASMTIME}") is not None
    assert answer.headers["x-sockd-cold"] == "1"


def test_starts_of_a_snapshot_have_the_module_loaded(daemon: RunningDaemon, command: str) -> None:
    daemon.deploy("snapped", {"fn.wasm": bytes(COMMAND)}, runtime="wasm", snapshot=True)
    answers = [daemon.run("snapped", "Count") for _ in range(2)]
    assert [answer.json for answer in answers] == [1, 1]
    assert daemon.run("snapped", "Count", x_sockd_fresh="1").headers["x-sockd-origin"] == "template"


@case("V3", "bring a forged compiled module in the archive", expect="the worker's own is loaded")
def test_compiled_code_of_an_archive_is_left_out(daemon: RunningDaemon) -> None:
    forged = compiled_path("fn.wasm", WASMTIME)
    daemon.deploy("forged", {"fn.wasm": bytes(COMMAND), forged: b"\x7fELF forged"}, runtime="wasm")
    assert daemon.call("forged", {"a": 1}) == {"a": 1}
    found = [path.stat() for path in (daemon.state / "code").rglob(forged)]
    assert found and all(each.st_size > 1000 and stat.S_IMODE(each.st_mode) == 0o444 for each in found)


@case("V4", "look for rights of the process that runs guests", expect="no capability, seccomp, a uid of its own")
def test_the_process_that_runs_guests_is_confined_as_any_other(daemon: RunningDaemon, command: str) -> None:
    daemon.call(command, {})
    (pid,) = (pid for pid in daemon.pids() if Path(f"/proc/{pid}/comm").read_text() == f"{command}\n")
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert status["Uid"].split()[0] != "0" and os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")


def test_the_handler_is_changed_by_a_deploy_alone(daemon: RunningDaemon, command: str, session: boto3.Session) -> None:
    client = client_of(session, daemon)
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="deploy the function again"):
        client.update_function_configuration(FunctionName=command, Handler="other.wasm")
    assert daemon.call(command, {}) == {}


def test_a_guest_reads_what_its_initscript_fetched(daemon: RunningDaemon) -> None:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        client.put("data", "a", b"abcdefgh")
        files = {"fn.wasm": bytes(READS_MESSAGE), "init.wasm": fetching("a")}
        settings = {
            "runtime": "wasm",
            "handler": "fn.wasm",
            "initscript": {"wasm": "init.wasm"},
            "env": patient(server),
        }
        daemon.deploy("fetches", files, **settings)
        assert daemon.call("fetches") == "abcde"
        assert daemon.call("fetches") == "-----"  # its work was done with the first answer


@pytest.mark.parametrize(
    ("files", "settings", "kind", "words"),
    [
        ({"fn.wasm": b"#!/bin/sh"}, {}, "InvalidModuleException", "fn.wasm cannot run: not a WebAssembly binary"),
        ({"fn.wasm": b"\0asm\1\0\0\0xx"}, {}, "InvalidModuleException", "malformed"),
        ({"fn.wasm": handler_component("string")}, {}, "InvalidModuleException", "'handle' is exported, but is not"),
        ({"a.wasm": b"", "b.wasm": b""}, {}, "InvalidParameterValueException", "there are a.wasm, b.wasm"),
        ({"fn.txt": b""}, {}, "InvalidParameterValueException", "there is none"),
        (
            {"fn.wasm": bytes(COMMAND)},
            {"handler": "other.wasm"},
            "InvalidParameterValueException",
            "must be a file of the code",
        ),
    ],
)
def test_what_can_serve_no_request_is_refused_by_its_deploy(
    daemon: RunningDaemon, files: dict[str, bytes], settings: dict[str, str], kind: str, words: str
) -> None:
    with pytest.raises(DeployFailed) as refused:
        daemon.deploy("refused", files, runtime="wasm", **settings)
    assert (refused.value.status, refused.value.type) == (400, kind)
    assert words in refused.value.message
