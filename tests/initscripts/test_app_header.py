"""`sockd_app.h`: a program in C, or C++, receives what the engine pushes, and no malformed datagram does it harm."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sockd_initscripts.authoring import toolchain
from sockd_storage_lib.sockd_initscript import wire
from tests.storage_lib.engine_end import EngineEnd

STRICT = (
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Werror",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover",
)
LANGUAGES = {
    "C11": ("cc", "-std=c11"),
    "C99": ("cc", "-std=c99"),
    "C++": ("c++", "-std=c++17", "-x", "c++"),
}
PROGRAM = r"""
#include "sockd_app.h"

static void show(const void *data, size_t length) {
    printf(" %zu ", length);
    fwrite(data, 1, length < 40 ? length : 40, stdout);
}

/* Each argument is a letter and an id: what is received, and shown in a line. */
int main(int count, char **words) {
    sockd_app app;
    int result = sockd_app_open(&app);
    if (result < 0) printf("%d\n", result);
    for (int n = 1; n < count; n++) {
        uint64_t id = strtoull(words[n] + 1, 0, 10);
        sockd_message message = {0, 0, 0, 0};
        char text[64] = "", type[64] = "";
        switch (words[n][0]) {
        case 'm':
            printf("%d", result = sockd_app_receive(&app, id, 5000, &message));
            if (!result) {
                show(message.data, message.length);
                printf(" %d %ld", message.status, sockd_app_header(&message, "content-type", type, sizeof type));
                if (sockd_app_header(&message, "content-type", type, sizeof type) >= 0) printf(" %s", type);
            }
            break;
        case 'f':
            result = sockd_app_receive_file(&app, id, 5000);
            if (result >= 0 && pwrite(result, "own", 3, 0) == 3) show(text, (size_t)pread(result, text, sizeof text, 0));
            else printf("%d", result);
            if (result >= 0) close(result);
            break;
        case 'c':
            result = sockd_app_get_connection(&app, id, 5000);
            if (result >= 0 && read(result, text, 5) == 5) show(text, 5);
            else printf("%d", result);
            if (result >= 0) close(result);
            break;
        case 'n': printf("%d", sockd_app_receive(&app, id, 0, &message)); break;
        case 's': printf("%d", sockd_app_send(&app, id, "hello", 5)); break;
        case 'l': printf("%d", sockd_app_send(&app, id, text, SOCKD_APP_PAYLOAD + 1)); break;
        case 'r': {
            const char *rpc[] = {"s3.GetObject", "b\"ucket", words[n], 0};
            sockd_app_report(&app, rpc, "region", 1, sockd_app_now_ns());
        }
        }
        printf("\n");
        fflush(stdout);
    }
    sockd_app_close(&app);
    return 0;
}
"""


@pytest.fixture(scope="module", params=LANGUAGES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = LANGUAGES[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return compiled(tmp_path_factory.mktemp("app"), command)


def compiled(directory: Path, command: tuple[str, ...]) -> Path:
    source, binary = directory / "program.c", directory / "program"
    source.write_text(PROGRAM)
    include = ("-I", str(toolchain.SDK / "c"))
    subprocess.run([command[0], *STRICT, *include, *command[1:], str(source), "-o", str(binary)], check=True)
    return binary


Ask = Callable[..., list[str]]


@pytest.fixture
def ask(program: Path, ends: tuple[EngineEnd, socket.socket]) -> Ask:
    """`ask("m0", "f1")` has the program receive that, and returns its lines. The engine's end has said all by then."""
    return lambda *words: answers(program, ends[1], *words)


def answers(program: Path, link: socket.socket, *words: str) -> list[str]:
    inode = os.fstat(link.fileno()).st_ino
    done = subprocess.run(
        [str(program), *words],
        env={"SOCKD_INITSCRIPT_FD": f"{link.fileno()}:{inode}", "ASAN_OPTIONS": "detect_leaks=0"},
        pass_fds=(link.fileno(),),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("latin-1").splitlines()


@pytest.fixture
def ends() -> Iterator[tuple[EngineEnd, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        engine = EngineEnd(ours)
        yield engine, theirs
        engine.close()


@pytest.fixture
def engine(ends: tuple[EngineEnd, socket.socket]) -> EngineEnd:
    return ends[0]


def test_messages_are_views_with_status_and_headers(engine: EngineEnd, ask: Ask) -> None:
    headers = {"etag": '"1"', "content-type": 'text/"x"; \xe4\n', "last": "x"}
    engine.sent(1, "s3.GetObject", "b", "k")
    engine.message(1, b"one", "s3.GetObject", "b", "k", headers=headers)
    engine.message(2, b"two" * 100_000, own=True)
    engine.message(3, b"", status=304)
    engine.message(2**64 - 1, b"beside the first", status=0)
    engine.message(1, b"not this one")
    engine.checked(1, same=True)
    assert ask("m3", "m2", "m1", "m1", f"m{2**64 - 1}") == [
        "0 0  304 -2",
        f"0 300000 {'two' * 13}t 200 -2",
        '0 3 one 200 12 text/"x"; \xe4',
        "",
        '0 3 one 200 12 text/"x"; \xe4',
        "",
        "0 16 beside the first 0 -2",
    ]


def test_files_and_connections_are_given_once(engine: EngineEnd, ask: Ask) -> None:
    engine.file(1, b"content")
    here, there = socket.socketpair()
    with here:
        here.sendall(b"hello")
        engine.push({"op": "connection", "id": 1, "addr": "x", "kind": "tcp"}, there.detach())
        engine.end()
        assert ask("f1", "f1", "c1", "c1") == [" 7 owntent", "-42", " 5 hello", "-42"]


def test_what_does_not_come_is_an_error_with_a_name(engine: EngineEnd, ask: Ask) -> None:
    engine.failed(1, "s3.GetObject", "b", "k")
    engine.message(2, b"sent before the end")
    assert ask("m1", "n3", "m2") == ["-42", "-110", "0 19 sent before the end 200 -2"]
    engine.close()
    assert ask("n2", "m2", "f2", "s2") == ["-32"] * 4, "as after the first answer"


def test_a_program_without_a_script_hears_so(program: Path) -> None:
    with open(os.devnull) as other:
        for variable in ("", "1", f"{other.fileno()}:{os.fstat(other.fileno()).st_ino}"):
            done = subprocess.run(
                [str(program), "m0", "s1"],
                env={"SOCKD_INITSCRIPT_FD": variable},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (done.stdout.split(), done.returncode) == (["-2"] * 3, 0), done.stderr


def test_messages_to_the_script_and_reads_arrive(engine: EngineEnd, ask: Ask) -> None:
    assert ask("s7", "l7", "rk\\e\ty") == ["0", "-90", ""]
    received = engine.receive()
    assert received == ({"op": "message", "id": 7}, b"hello", [])
    (read,) = engine.reads()
    assert read == (["s3.GetObject", 'b"ucket', "rk\\e\ty"], "region")


MALFORMED: list[dict[str, Any]] = [
    {"op": "message", "id": 1, "segment": 0, "offset": 0, "length": 9},
    {"op": "message", "id": 1, "segment": 0, "offset": 0, "length": 2**64 - 1, "size": 100},
    {"op": "message", "id": 1, "segment": 0, "offset": 2**64 - 9, "length": 10, "size": 100},
    {"op": "message", "id": 1, "segment": 0, "offset": 96, "length": 9, "size": 100},
    {"op": "message", "id": 1, "segment": 0, "offset": 0, "length": 9, "size": 101},
    {"op": "message", "id": 1, "segment": -1, "offset": 0, "length": 9, "size": 100},
    {"op": ["file"]},
]


@pytest.mark.parametrize("message", MALFORMED)
def test_an_engine_that_breaks_the_protocol_is_not_listened_to(ends: Any, ask: Ask, message: dict[str, Any]) -> None:
    fd = os.memfd_create("short", os.MFD_CLOEXEC)
    os.ftruncate(fd, 100)
    with open(fd, "rb") as file:
        socket.send_fds(ends[0].sock, [json.dumps(message, separators=(",", ":")).encode() + b"\n"], [file.fileno()])
    assert ask("m1", "m1") == ["-71", "-71"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("strict"), LANGUAGES["C11"])


texts = st.text(st.sampled_from('"\\{}[]:,op0u\n'), max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.binary(min_size=1, max_size=80) | texts.map(lambda text: f'{{"op":"message"{text}\n'.encode()), max_size=3
    )
)
def test_bytes_that_are_no_message_do_no_harm(strict: Path, datagrams: list[bytes]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for datagram in datagrams:
            ours.send(datagram)
        assert answers(strict, theirs, "n0", "n1")[-1] in ("-110", "-71", "0 ", "0")


def test_the_header_knows_all_that_the_engine_says() -> None:
    header = (toolchain.SDK / "c/sockd_app.h").read_text()
    passed_over = {"sent", "check", "checked", "read"}
    assert all(f'"{operation}"' in header for operation in wire.FIELDS.keys() - passed_over)
