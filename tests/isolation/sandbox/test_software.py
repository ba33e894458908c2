"""What ordinary Python programs do works in a sandbox: subprocesses, shared memory, temporary files, TLS, /proc, DNS."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.harness import Harness

pytestmark = pytest.mark.root


def test_subprocesses(harness: Harness) -> None:
    def run(event: Any) -> Any:
        import os
        import subprocess
        import sys

        shell = subprocess.run("echo $OWN | tr a-z A-Z", shell=True, capture_output=True, text=True, check=True)
        python = subprocess.run(
            [sys.executable, "-c", "import json; print(json.dumps(1))"], capture_output=True, text=True, check=True
        )
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            echoed = child.communicate(b"x" * 200_000)[0]
        status = os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c", "exit 3"]) << 8)
        return shell.stdout, python.stdout, len(echoed), status

    assert harness.answer(run, env={"OWN": "yes"}) == ["YES\n", "1\n", 200_000, 3]


def test_what_a_subprocess_prints_is_logged(harness: Harness) -> None:
    def run(event: Any) -> Any:
        import subprocess

        subprocess.run(["sh", "-c", "echo out; echo err >&2"], check=True)

    assert sorted(harness.reply(run).log.split()) == [b"err", b"out"]


def test_orphans_are_reaped_and_signals_between_processes_work(harness: Harness) -> None:
    def run(event: Any) -> Any:
        import os
        import signal
        import subprocess

        sleeper = subprocess.Popen(["sleep", "100"])
        sleeper.send_signal(signal.SIGTERM)
        ended = sleeper.wait(5)
        reader, writer = os.pipe()
        if os.fork() == 0:  # noqa: TID251
            if os.fork() == 0:  # noqa: TID251
                os.write(writer, b"%d" % os.getppid())
            os._exit(0)
        os.wait()
        return ended, int(os.read(reader, 10)) > 0

    assert harness.answer(run) == [-15, True]


def test_a_pool_of_processes(harness: Harness) -> None:
    source = """
    import multiprocessing
    def square(x): return x * x
    def handler(how):
        context = multiprocessing.get_context(how)
        with context.Pool(2) as pool:
            return pool.map(square, range(5))
    """
    for how in ("fork", "spawn", "forkserver"):
        assert harness.answer(source, how) == [0, 1, 4, 9, 16], how


def test_queues_locks_and_shared_memory(harness: Harness) -> None:
    source = """
    import multiprocessing
    from multiprocessing import shared_memory
    def work(queue, lock, name):
        memory = shared_memory.SharedMemory(name)
        with lock:
            memory.buf[0] += 1
        memory.close()
        queue.put(memory.name == name)
    def handler(event):
        memory = shared_memory.SharedMemory(create=True, size=100)
        queue, lock = multiprocessing.Queue(), multiprocessing.Lock()
        children = [multiprocessing.Process(target=work, args=(queue, lock, memory.name)) for _ in range(3)]
        for child in children: child.start()
        answers = [queue.get(timeout=5) for _ in children]
        for child in children: child.join()
        count = memory.buf[0]
        memory.close()
        memory.unlink()
        value = multiprocessing.Value("i", 7)
        return answers, count, value.value, [child.exitcode for child in children]
    """
    assert harness.answer(source) == [[True] * 3, 3, 7, [0, 0, 0]]


def test_temporary_files(harness: Harness) -> None:
    def run(event: Any) -> Any:
        import os
        import sqlite3
        import tempfile

        with (
            tempfile.TemporaryDirectory() as directory,
            tempfile.NamedTemporaryFile() as file,
            tempfile.TemporaryFile(),
        ):
            database = sqlite3.connect(f"{directory}/db")
            database.execute("create table t (x)")
            database.close()
            os.mkfifo(f"{directory}/fifo")
            os.symlink("db", f"{directory}/link")
            return (
                os.path.dirname(directory),
                os.path.dirname(file.name),
                os.access("/tmp", os.W_OK),
                os.path.expanduser("~"),
            )

    assert harness.answer(run) == ["/tmp", "/tmp", True, "/tmp"]


def test_a_child_zygotes_scratch_is_not_the_functions(harness: Harness) -> None:
    def run(event: Any) -> Any:
        import os
        import tempfile

        return tempfile.mkdtemp().startswith("/tmp/tmp"), os.environ.get("TMPDIR"), os.path.expanduser("~")

    harness.add_package("temp", {"uses_tempfile.py": "import tempfile\ndirectory = tempfile.gettempdir()\n"})
    zygote = harness.spawn(modules=["uses_tempfile"])
    assert harness.answer(run, zygote=zygote) == [True, None, "/tmp"]


def test_tls_has_its_certificates(harness: Harness) -> None:
    def run(event: Any) -> Any:
        import hashlib
        import ssl

        context = ssl.create_default_context()
        return bool(context.get_ca_certs()), ssl.RAND_bytes(8).hex() != ssl.RAND_bytes(8).hex(), hashlib.sha256().name

    has_certificates, *others = harness.answer(run)
    assert has_certificates == os.path.exists("/etc/ssl/certs/ca-certificates.crt")
    assert others == [True, "sha256"]


def test_threads_and_async(harness: Harness) -> None:
    source = """
    import asyncio, concurrent.futures
    async def handler(event, context):
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            squares = await asyncio.gather(*(loop.run_in_executor(pool, pow, n, 2) for n in range(4)))
        process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return [*squares, out.decode(), id(loop)]
    """
    running = harness.start(source)
    first, second = running.answer(), running.answer()
    assert first[:5] == [0, 1, 4, 9, "hi\n"]
    assert first == second  # one loop for all requests


def test_what_psutil_reads_is_there(harness: Harness) -> None:
    def read(event: Any) -> Any:
        sizes = {}
        for name in (
            *("meminfo", "cpuinfo", "stat", "uptime", "loadavg", "self/status", "self/stat", "self/statm", "self/maps"),
            *(
                "self/smaps",
                "self/io",
                "self/limits",
                "self/mounts",
                "self/cmdline",
                "self/cgroup",
                "net/dev",
                "mounts",
            ),
            *("thread-self/comm", "self/oom_score", "self/fdinfo/0", "filesystems", "version", "sys/kernel/pid_max"),
        ):
            with open(f"/proc/{name}", "rb") as file:
                sizes[name] = len(file.read())
        return sizes

    sizes = harness.answer(read)
    assert {name for name, size in sizes.items() if not size} <= {"self/mounts", "mounts"}, sizes


def test_names_resolve(harness: Harness) -> None:
    def resolve(event: Any) -> Any:
        import getpass
        import grp
        import os
        import pwd
        import socket

        addresses = {info[4][0] for info in socket.getaddrinfo("localhost", 80)}
        return sorted(addresses), getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, grp.getgrgid(os.getgid()).gr_name

    addresses, *names = harness.answer(resolve)
    assert "127.0.0.1" in addresses or "::1" in addresses
    assert names == ["sandbox", "/tmp", "sandbox"]


def test_local_time_and_locale(harness: Harness) -> None:
    def tell(event: Any) -> Any:
        import locale
        import sys
        import time
        import zoneinfo

        print("ü€")
        return time.tzname[0], locale.getpreferredencoding(), sys.stdout.encoding, zoneinfo.ZoneInfo("UTC").key

    assert harness.answer(tell)[:3] == ["UTC", "UTF-8", "utf-8"]
    assert harness.answer(tell, env={"TZ": "Europe/Berlin"})[0] == "CET"
    assert harness.reply(tell).log == "ü€\n".encode()


def test_the_interpreter_is_as_a_program_expects_it(harness: Harness) -> None:
    def look(event: Any) -> Any:
        import sys

        return sys.path, exit.__class__.__name__, sys.argv, sys.flags.dev_mode, __name__, __file__

    path, exits, _, _, name, file = harness.answer(look)
    assert path[0] == "/var/task"
    assert not any("site-packages" in entry or "sockd" in entry for entry in path), path
    assert (exits, name, file) == ("Quitter", "f", "/var/task/f.py")


def test_handlers_of_every_kind_are_called(harness: Harness) -> None:
    source = """
    import functools
    async def asynchronous(event): return ["async", event]
    def with_context(event, context): return ["context", context.function_name]
    def starred(*args): return ["starred", len(args)]
    def with_default(event, context, extra=1): return ["default", extra]
    class Callable:
        def __call__(self, event): return ["callable", event]
        def method(self, event): return ["method", event]
        async def async_method(self, event, context): return ["async method", event]
        @staticmethod
        def static(event): return ["static", event]
        @classmethod
        def of_class(cls, event): return ["class", event]
    class AsyncCallable:
        async def __call__(self, event): return ["async callable", event]
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs): return function(*args, **kwargs)
        return wrapper
    callable = Callable()
    async_callable = AsyncCallable()
    method, async_method, static, of_class = callable.method, callable.async_method, Callable.static, Callable.of_class
    partial = functools.partial(with_default, extra=2)
    async_partial = functools.partial(asynchronous)
    wrapped = logged(Callable.static)
    wrapped_async = logged(asynchronous)
    builtin = len
    lambda_ = lambda event: ["lambda", event]
    """
    expected = {
        "asynchronous": ["async", "e"],
        "with_context": ["context", "f"],
        "starred": ["starred", 2],
        "with_default": ["default", 1],
        "callable": ["callable", "e"],
        "async_callable": ["async callable", "e"],
        "method": ["method", "e"],
        "async_method": ["async method", "e"],
        "static": ["static", "e"],
        "of_class": ["class", "e"],
        "partial": ["default", 2],
        "async_partial": ["async", "e"],
        "wrapped": ["static", "e"],
        "wrapped_async": ["async", "e"],
        "builtin": 1,
        "lambda_": ["lambda", "e"],
    }
    answers = {name: harness.answer(source, "e", handler=f"f:{name}") for name in expected}
    assert answers == expected


def test_a_spare_becomes_a_function_with_that_functions_limits(harness: Harness) -> None:
    def fill(event: Any) -> Any:
        written = 0
        try:
            with open("/tmp/big", "wb", buffering=0) as file:
                while written < 64 << 20:
                    written += file.write(b"x" * 65536)
        except OSError:
            return written

    program = harness.program(fill, tmp_bytes=2 << 20, memory_bytes=100 << 20)

    async def become() -> Any:
        spare = await harness.fork(harness.limits(memory_bytes=16 << 20))
        spare.process.adopt(await harness.reserve(program.limits))
        spare.become(program)
        reply = await spare.request(bytes(16), b"null")
        size = spare.reserved_bytes
        spare.destroy()
        return reply, size

    reply, size = harness.run(become())
    assert reply.error is None
    assert 1 << 20 < int(reply.body) <= 2 << 20
    assert size == 100 << 20
