"""What own code changes of its process and of the interpreter before an import: a recording has each kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.zygote.top_levels.starts import Starts


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    made = Starts(tmp_path)
    for name in ("base", "other"):
        made.install(name, {f"{name}.py": "def call(function): return function()\n"})
    made.install("lists", {"lists.py": "FOUND = [each.__name__ for each in Exception.__subclasses__()]\n"})
    made.install("held", {"held.py": HELD})
    return made


HELD = """
import hashlib, io, threading
text, data, lock, seen = io.StringIO("a"), io.BytesIO(b"a"), threading.Lock(), hashlib.sha256()
"""
CHANGES = {
    "the name of the main thread": "threading.current_thread().name = 'own'",
    "the name of the process": "open('/proc/self/comm', 'w').write('own')",
    "the size of stacks": "threading.stack_size(1 << 20)",
    "niceness": "os.nice(1)",
    "the policy of the scheduler": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "the descriptor for signals": "kept = os.pipe(); os.set_blocking(kept[1], False); signal.set_wakeup_fd(kept[1])",
    "a handler of a signal": "signal.signal(signal.SIGUSR1, print)",
    "a handler in C": "import faulthandler; faulthandler.register(signal.SIGUSR2)",
    "a mask of signals": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
    "a pending signal": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); os.kill(os.getpid(), signal.SIGUSR1)",
    "a timer": "signal.setitimer(signal.ITIMER_REAL, 1000)",
    "an alarm": "signal.alarm(1000)",
    "hooks of asynchronous generators": "sys.set_asyncgen_hooks(firstiter=print)",
    "the umask": "os.umask(0o007)",
    "the limit of cores": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "the limit of descriptors": "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))",
    "the locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "the domain of messages": "locale.textdomain('own')",
    "the working directory": "os.chdir('/')",
    "the precision of decimals": "decimal.getcontext().prec = 5",
    "a trap of decimals": "decimal.getcontext().traps[decimal.Inexact] = True",
    "a flag of decimals": "decimal.Decimal(1) / 3",
    "the limit of recursions": "sys.setrecursionlimit(2000)",
    "the switch interval": "sys.setswitchinterval(0.01)",
    "the thresholds of the garbage collector": "gc.set_threshold(5)",
    "the garbage collector": "gc.disable()",
    "the flags of the garbage collector": "gc.set_debug(gc.DEBUG_UNCOLLECTABLE)",
    "what the garbage collector leaves out": "gc.freeze()",
    "a callback of the garbage collector": "gc.callbacks.append(lambda *_: None)",
    "the exception hook": "sys.excepthook = lambda *_: None",
    "the exception hook, for another of the interpreter's": "sys.excepthook = sys.unraisablehook",
    "the hook of unraisable exceptions": "sys.unraisablehook = lambda *_: None",
    "the hook of breakpoints": "sys.breakpointhook = lambda *_: None",
    "the hook of shown values": "sys.displayhook = lambda *_: None",
    "the hook of threads": "threading.excepthook = lambda *_: None",
    "a profiler of threads": "threading.setprofile(lambda *_: None)",
    "the fault handler": "import faulthandler; faulthandler.enable()",
    "tracing of memory": "import tracemalloc; tracemalloc.start()",
    "the timeout of sockets": "socket.setdefaulttimeout(3)",
    "a type of files": "import mimetypes; mimetypes.add_type('own/own', '.own')",
    "the seed": "random.seed(1)",
    "a name that platform keeps": "import platform\nkept = platform.uname()\nplatform._uname_cache = kept._replace(node='own')",
    "a text that platform keeps": "import platform\nplatform._platform_cache[False, False] = 'own'",
    "a version that platform keeps": "import platform\nplatform._sys_version_cache[sys.version] = ('own',) * 7",
    "the session": "os.setsid() if os.getpid() != os.getsid(0) else None; os.getpgid(0) == os.getpid() or os.setpgid(0, 0)",
    "standard output": "kept = os.open('/dev/null', os.O_WRONLY); os.dup2(os.dup(1), 9); os.dup2(kept, 1); os.close(kept)",
    "an open pipe": "kept = os.pipe()",
    "a stream of the same kind": "sys.stderr = open('/dev/null', 'w')",
    "a name in sys": "sys.frozen = True",
    "a constant of sys": "sys.platform = 'own'",
    "the length of tracebacks": "sys.tracebacklimit = 3",
    "the interpreter's file": "sys.executable = '/own'",
    "a warning option": "sys.warnoptions.append('error')",
    "an option of the interpreter": "sys._xoptions['own'] = True",
    "a finder of the same kind": "sys.meta_path[-1] = type('PathFinder', (sys.meta_path[-1],), {})",
    "a hook of paths": "sys.path_hooks[-1] = lambda path, old=sys.path_hooks[-1]: old(path)",
    "a finder of a path": "sys.path_importer_cache['/own'] = type('Finder', (), {'find_spec': lambda *_: None})()",
    "a loader's method": "importlib.machinery.SourceFileLoader.own = 1",
    "a suffix of source files": "importlib._bootstrap_external.SOURCE_SUFFIXES.append('.own')",
    "the running event loop": "asyncio.events._set_running_loop(asyncio.new_event_loop())",
    "the length of stack traces of coroutines": "sys.set_coroutine_origin_tracking_depth(5)",
    "a program": "subprocess.run(['true'])",
    "a call of a C library": "import ctypes; ctypes.CDLL(None).getpid()",
    "the settings of syslog": "import syslog; syslog.openlog('own')",
    "a database in memory": "import sqlite3; sqlite3.connect(':memory:').close()",
    "a text in memory": "held.text.write('own')",
    "the place in a text": "held.text.seek(1)",
    "bytes in memory": "held.data.write(b'own')",
    "a lock": "held.lock.acquire()",
    "a digest": "held.seen.update(b'own')",
    "an event loop that is set": "asyncio.set_event_loop(asyncio.new_event_loop())",
    "a variable, past all registries": "import ctypes; ctypes.CDLL(None).setenv(b'OWN', b'1', 1)",
}
LOADED = (
    *(
        "asyncio",
        "decimal",
        "gc",
        "hashlib",
        "importlib.machinery",
        "io",
        "locale",
        "os",
        "random",
        "resource",
        "signal",
    ),
    *("socket", "subprocess", "sys", "threading"),
)
BEGIN = f"import {', '.join(LOADED)}\nimport base, held\n"


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_before_an_import_is_seen(starts: Starts, what: str) -> None:
    restored = "import os\nos.path.exists('/proc/self/fd/9') and os.dup2(9, 1)\n"
    recording = starts.record(f"{BEGIN}{CHANGES[what]}\nimport other\n{restored}", loaded=LOADED)
    assert recording.failure == "" and recording.step("base").before == ""
    assert recording.step("other").before, "an import may see it, and nothing was noted"


def test_without_a_change_nothing_is_seen(starts: Starts) -> None:
    code = f"{BEGIN}kept = []\nopen('/dev/null').close()\nlog = print\nimport other\n"
    recording = starts.record(code, loaded=LOADED)
    assert recording.failure == "" and recording.step("other").before == ""
    assert recording.step("other").writes == ()


def test_a_class_of_own_code_is_a_change_to_an_import_that_lists_those_of_its_base(starts: Starts) -> None:
    code = f"{BEGIN}class Own(Exception): pass\nimport other\nimport lists\n"
    recording = starts.record(code, loaded=LOADED)
    assert recording.step("other").before == ""
    assert recording.step("lists").before == "subclasses, which lists lists,"
    recording = starts.record(f"{BEGIN}class Own: pass\nimport lists\n", loaded=LOADED)
    assert recording.step("lists").before == "", "classes of another base are not listed"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12")
def test_a_tool_that_monitors_is_a_change(starts: Starts) -> None:
    recording = starts.record(f"{BEGIN}sys.monitoring.use_tool_id(5, 'own')\nimport other\n", loaded=LOADED)
    assert recording.step("other").before == "tools of sys.monitoring"
