"""The C extension as far as it can be called in an ordinary process: frames, environment, the layout that both sides share."""

from __future__ import annotations

import array
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sockd.isolation.sandbox.frame_decoder import FrameDecoder
from sockd_zygote import _native, fork_server, protocol

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "zygote" / "native"
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


IN_BOTH_LIBRARIES = set(
    """
    __cxa_finalize __environ __errno_location __stack_chk_fail _exit chroot clock_gettime close dladdr dlsym dup2
    dup3 environ fchdir fclose fcntl fgets free getpid lseek64 madvise malloc memcmp memcpy memset mmap64 mprotect
    mremap pipe2 poll prctl pthread_getcpuclockid pthread_self putenv raise read recvmsg sbrk sched_yield sendmsg
    setns setresgid setresuid setrlimit64 setsid sigaction snprintf sscanf strchr strchrnul strcmp strcspn strdup
    strerror strlen strncmp strnlen strrchr syscall sigaddset sigemptyset sigprocmask socket unsetenv waitpid write
    """.split()
)
"""Functions of glibc that every musl from 1.2 on has, too (readelf --dyn-syms ld-musl-x86_64.so.1). Its loader knows
lseek64, mmap64 and setrlimit64 in old binaries (dynlink.c)."""


def evaluate(code: str) -> Any:
    """What a program prints as JSON, with the extension imported."""
    program = f"import json, os, sys; sys.path.insert(0, {str(REPOSITORY)!r}); from sockd_zygote import _native; {code}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("nm") is None, reason="binutils are not installed")
def test_only_functions_that_glibc_and_musl_have_are_called() -> None:
    """musl's loader ends a process with a library whose functions are not all there, and this one is preloaded."""
    done = subprocess.run(["nm", "-D", "-u", _native.__file__], capture_output=True, text=True, check=True)
    called = {name.partition("@")[0] for kind, name in map(str.split, done.stdout.splitlines()) if kind == "U"}
    assert {name for name in called if not name.startswith(("Py", "_Py"))} <= IN_BOTH_LIBRARIES


def test_frames_come_one_at_a_time_and_then_the_end(pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(protocol.encode_frame(protocol.INIT, 1, b"one") + protocol.encode_frame(protocol.INVOKE, 2**63, b""))
    ours.shutdown(socket.SHUT_WR)
    assert _native.receive(theirs.fileno()) == (protocol.INIT, 1, b"one", ())
    assert _native.receive(theirs.fileno()) == (protocol.INVOKE, 2**63, b"", ())
    assert _native.receive(theirs.fileno()) is None


def test_a_stream_that_ends_inside_a_frame_has_ended(pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(protocol.encode_frame(protocol.INIT, 1, b"cut")[:-1])
    ours.shutdown(socket.SHUT_WR)
    assert _native.receive(theirs.fileno()) is None


@pytest.mark.parametrize("fields", [(0, 0, 0, 0), (0, 13, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1), ((1 << 30) + 1, 1, 0, 0)])
def test_a_header_that_is_none_is_an_error(pair: Pair, fields: tuple[int, int, int, int]) -> None:
    ours, theirs = pair
    ours.sendall(protocol.HEADER.pack(*fields, 1))
    with pytest.raises(OSError, match="frame header: Protocol error"):
        _native.receive(theirs.fileno())


def test_descriptors_come_with_their_frame_and_close_on_exec(pair: Pair) -> None:
    ours, theirs = pair
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours.fileno(), ours.fileno()]))
    ours.sendmsg([protocol.encode_frame(protocol.INIT, 1, b"body")], [rights])
    frame = _native.receive(theirs.fileno())
    assert frame is not None
    assert frame[:3] == (protocol.INIT, 1, b"body")
    assert len(frame[3]) == 2
    for fd in frame[3]:
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_a_reply_is_the_frame_that_the_daemon_decodes(pair: Pair) -> None:
    ours, theirs = pair
    _native.reply(theirs.fileno(), protocol.RESULT, 5, 17, 2**40, b"answer", b"[]")
    decoder = FrameDecoder(dict.fromkeys(protocol.FRAME_NAMES, 100))
    decoder.feed(ours.recv(1000))
    assert decoder.next_frame() == (protocol.MODULES, 5, b"[]")
    frame = decoder.next_frame()
    assert frame is not None
    assert frame[:2] == (protocol.RESULT, 5)
    assert protocol.TIMES.unpack_from(frame[2]) == (17, 2**40)
    assert frame[2][protocol.TIMES.size :] == b"answer"


def test_a_large_reply_is_sent_whole(pair: Pair) -> None:
    code = "import socket; a, b = socket.socketpair(); os.set_blocking(b.fileno(), True); pid = os.fork()\n"
    code += (
        "if pid == 0: a.close(); _native.reply(b.fileno(), 5, 1, 0, 0, b'x' * (3 << 20), b'y' * 1000); os._exit(0)\n"
    )
    code += "b.close(); size = sum(iter(lambda: len(a.recv(1 << 16)), 0)); print(json.dumps(size))"
    assert evaluate(code) == (3 << 20) + 1000 + 32 + 16


def test_a_peer_that_is_gone_is_an_error_and_no_signal(pair: Pair) -> None:
    ours, theirs = pair
    ours.close()
    with pytest.raises(BrokenPipeError):
        _native.reply(theirs.fileno(), protocol.READY, 0, 0, 0, b"")


def test_c_code_sees_the_environment_and_can_go_on_with_it() -> None:
    code = "import ctypes; os.environ['OLD'] = '1'; _native.set_environment({b'OLD': b'2', b'NEW': b'\\xff=', b'EMPTY': b''})\n"
    code += (
        "get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p; os.putenv('LATER', 'x'); os.unsetenv('EMPTY')\n"
    )
    code += "names = (b'OLD', b'NEW', b'LATER', b'EMPTY', b'PATH')\n"
    code += "print(json.dumps([repr(get(name)) for name in names[:4]] + [get(b'PATH') == os.environb[b'PATH']]))"
    assert evaluate(code) == ["b'2'", "b'\\xff='", "b'x'", "None", True]


def test_a_variable_of_a_request_has_two_places_for_all_its_values() -> None:
    """setenv(3) keeps each value for good: a hundred bytes of the sandbox's memory for each request."""
    code = (
        "import ctypes; get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p; places, seen = set(), []\n"
        "for number in range(100):\n"
        "    _native.set_request_variable(1, b'PARENT=%d' % number); seen.append(get(b'PARENT').decode())\n"
        "    get.restype = ctypes.c_void_p; places.add(get(b'PARENT')); get.restype = ctypes.c_char_p\n"
        "    _native.set_request_variable(1, b'PARENT'); seen.append(get(b'PARENT'))\n"
        "print(json.dumps([len(places), seen[:4], len(seen)]))"
    )
    assert evaluate(code) == [2, ["0", None, "1", None], 200]


def test_programs_inherit_a_variable_of_a_request_only_while_it_is_set() -> None:
    code = (
        "entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\n"
        "def inherited():\n"
        "    all_entries = itertools.takewhile(bool, (entries[number] for number in itertools.count()))\n"
        "    return [each.decode() for each in all_entries if b'STATE' in each]\n"
        "seen = []\n"
        "for entry in (b'STATE=a', b'STATE', b'STATE=b', b'STATE=c', b'STATE'):\n"
        "    _native.set_request_variable(2, entry); seen.append(inherited())\n"
        "print(json.dumps(seen))"
    )
    assert evaluate(f"import ctypes, itertools\n{code}") == [["STATE=a"], [], ["STATE=b"], ["STATE=c"], []]


@pytest.mark.parametrize(("place", "entry"), [(3, b"NAME=x"), (0, b"NAME=" + b"x" * 635)])
def test_a_variable_of_a_request_without_a_place_is_refused(place: int, entry: bytes) -> None:
    with pytest.raises(ValueError, match="no place"):
        _native.set_request_variable(place, entry)


def test_names_and_values_that_are_not_bytes_are_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        _native.set_environment({"a": "b"})  # type: ignore[dict-item]


def test_the_numbers_that_c_and_python_share_are_the_same() -> None:
    text = "".join(source.read_text() for source in sorted(SOURCES.glob("*.[ch]")))
    defined = dict(re.findall(r"^#define (\w+) +([^/\n]+?) *(?:/\*.*)?$", text, re.MULTILINE))
    assert eval(defined["MESSAGE_MAX_BYTES"]) == protocol.CONTROL_MAX_BYTES
    assert int(defined["MAX_FDS"]) == protocol.CONTROL_MAX_FDS
    assert int(defined["CHANNEL_FD"]) == fork_server.CHANNEL_FD
    assert int(defined["FAILED"]) == protocol.FAILED
    assert int(defined["LAST_KIND"]) == max(protocol.FRAME_NAMES)
    assert protocol.FORK.size == 24


def test_a_rehearsal_leaves_nothing_behind() -> None:
    code = "from sockd_zygote import rehearsal\n"
    code += "def state(): return [dict(os.environ), sys.path[:], sorted(sys.modules), os.getcwd(), os.listdir('/proc/self/fd')]\n"
    code += "os.chdir('/'); rehearsal.rehearse(); before = state(); rehearsal.rehearse(3); print(json.dumps(state() == before))"
    assert evaluate(code) is True
