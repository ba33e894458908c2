"""What code changes in the interpreter and the standard library, each change in an interpreter of its own."""

from __future__ import annotations

import _thread
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.top_levels import interpreter

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from sockd_zygote.top_levels import interpreter
def settings():  # without /tmp, where other tests write meanwhile
    return {name: value for name, value in interpreter.settings().items() if name != "files in /tmp"}
def main(modules, change):
    loaded = set(sys.modules)
    for name in modules.split():
        __import__(name)
    before, again = settings(), settings()
    exec(change, {"sys": sys})
    after = settings()
    sys.stdout = sys.__stdout__
    imported = set(sys.modules) - loaded - set(modules.split())
    changed = {name: [before[name], after[name]] for name in before if before[name] != after[name]}
    import json
    print(json.dumps({"stable": before == again, "changed": changed, "names": sorted(after), "imported": sorted(imported)}))
main(*sys.argv[2:])
"""


def run(change: str, *modules: str) -> dict[str, Any]:
    """What a change has done to the settings of an interpreter that has imported some modules."""
    command = [sys.executable, "-I", "-S", "-X", "utf8=0", "-c", PROGRAM, str(REPOSITORY), " ".join(modules), change]
    done = subprocess.run(command, env={"LC_ALL": "C.UTF-8"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout)
    assert reported["stable"], "two looks at the same process differ"
    return reported


CHANGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "os.environ": ("import os; os.environ['A'] = '1'", ()),
    "process name": ("with open('/proc/self/comm', 'w') as name: name.write('other')", ()),
    "csv": ("import csv; csv.field_size_limit(7)", ("csv",)),
    "working directory": ("import os; os.chdir('/usr')", ()),
    "umask": ("import os; os.umask(os.umask(0) ^ 0o111)", ()),
    "threads": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        ("threading",),
    ),
    "__main__": ("import __main__; __main__.DEBUG = True", ()),
    "niceness": ("import os; os.nice(1)", ()),
    "os.get_blocking()": ("import os; os.set_blocking(1, not os.get_blocking(1))", ()),
    "sys.path": ("sys.path.append('/nowhere')", ()),
    "sys.argv": ("sys.argv = sys.argv + ['x']", ()),
    "sys.meta_path": ("class F: find_spec = None\nsys.meta_path.append(F())\nsys.meta_path = sys.meta_path[:]", ()),
    "sys.path_hooks": ("sys.path_hooks.append(len)", ()),
    "sys.excepthook": ("def hook(*_): pass\nsys.excepthook = hook", ()),
    "sys.displayhook": ("def hook(*_): pass\nsys.displayhook = hook", ()),
    "sys.dont_write_bytecode": ("sys.dont_write_bytecode = not sys.dont_write_bytecode", ()),
    "sys.getrecursionlimit()": ("sys.setrecursionlimit(1234)", ()),
    "sys.getswitchinterval()": ("sys.setswitchinterval(0.5)", ()),
    "sys.get_asyncgen_hooks()": ("sys.set_asyncgen_hooks(firstiter=len)", ()),
    "sys.get_coroutine_origin_tracking_depth()": ("sys.set_coroutine_origin_tracking_depth(3)", ()),
    "sys.gettrace()": ("sys.setprofile(lambda *_: None)", ()),
    "atexit callbacks": ("atexit = sys.modules['atexit']; atexit.register(int)", ("atexit",)),
    "builtins": ("import builtins; builtins._ = len", ()),
    "copyreg.dispatch_table": ("import copyreg; copyreg.pickle(type(sys), len)", ("copyreg",)),
    "decimal context": ("import decimal; decimal.getcontext().prec = 7", ("decimal",)),
    "gc": ("import gc; gc.set_threshold(5)", ("gc",)),
    "json": ("import json; json.JSONEncoder.default = lambda self, o: 1", ("json",)),
    "locale": ("import locale; locale.setlocale(locale.LC_ALL, 'C')", ("locale",)),
    "logging": ("import logging; logging.disable(30)", ("logging",)),
    "logging levels": ("import logging; logging.addLevelName(5, 'TRACE')", ("logging",)),
    "loggers": ("import logging; logging.getLogger('x').setLevel(10)", ("logging",)),
    "mimetypes": ("import mimetypes; mimetypes.add_type('x/y', '.xy')", ("mimetypes",)),
    "signal handlers": ("import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)", ("signal",)),
    "signal.set_wakeup_fd()": (
        "import os, signal; fd = os.pipe()[1]; os.set_blocking(fd, False); signal.set_wakeup_fd(fd)",
        ("signal",),
    ),
    "socket": ("import socket; socket.setdefaulttimeout(3)", ("socket",)),
    "socket.socket": ("import socket\nclass socket_(socket.socket): pass\nsocket.socket = socket_", ("socket",)),
    "ssl": ("import ssl\nclass Context(ssl.SSLContext): pass\nssl.SSLContext = Context", ("ssl",)),
    "the name of the main thread": ("import threading; threading.main_thread().name = 'x'", ("threading",)),
    "threading.stack_size()": ("import threading; threading.stack_size(1 << 20)", ("threading",)),
    "threading.Thread": (
        "import threading\nclass Thread(threading.Thread): pass\nthreading.Thread = Thread",
        ("threading",),
    ),
    "warnings.filters": ("import warnings; warnings.simplefilter('error')", ("warnings",)),
    "warnings.showwarning": ("import warnings\ndef show(*_): pass\nwarnings.showwarning = show", ("warnings",)),
}


def threads_name_the_process() -> bool:
    """Whether the interpreter gives a thread's name to the kernel (CPython 3.14), where the main thread's is the process's."""
    return hasattr(_thread, "set_name")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_where_it_is(name: str) -> None:
    change, modules = CHANGES[name]
    reported = run(change, *modules)
    as_well = {"process name"} if name == "the name of the main thread" and threads_name_the_process() else set()
    assert reported["changed"].keys() == {name} | as_well
    assert reported["changed"][name][0] != reported["changed"][name][1]


MORE: dict[str, tuple[str, str]] = {
    "a handler of the root logger": ("loggers", "import logging; logging.basicConfig()"),
    "a filter of a logger": ("loggers", "import logging; logging.getLogger('x').addFilter(len)"),
    "a logger that passes nothing on": ("loggers", "import logging; logging.getLogger('x').propagate = False"),
    "the class of loggers": (
        "logging",
        "import logging\nclass L(logging.Logger): pass\nlogging.setLoggerClass(L)",
    ),
    "a dialect": ("csv", "import csv; csv.register_dialect('x')"),
    "a tracer": ("sys.gettrace()", "sys.settrace(lambda *_: None)"),
    "standard output": ("standard streams", "class Out:\n  write = flush = len\nsys.stdout = Out()"),
    "a variable that is set in C": ("os.environ", "import os; os.environb[b'A'] = b'\\xff'"),
}


@pytest.mark.parametrize("which", MORE)
def test_more_that_is_seen(which: str) -> None:
    name, change = MORE[which]
    assert run(change, "logging", "csv")["changed"].keys() == {name}


def test_a_new_logger_and_a_used_filter_are_no_change() -> None:
    assert not run("import logging; logging.getLogger('new')", "logging")["changed"]
    assert not run("import warnings; warnings.warn('x')", "warnings")["changed"]


def test_reading_imports_no_codec_of_another_locale() -> None:
    reported = run("import _locale; _locale.setlocale(_locale.LC_ALL, 'C')", "_locale")
    assert reported["changed"].keys() == {"locale"} and reported["imported"] == []


def test_reading_imports_nothing() -> None:
    reported = run("pass")
    assert reported["imported"] == []
    assert "decimal context" not in reported["names"] and "socket" not in reported["names"]


def test_files_in_tmp_are_named() -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        found = interpreter.files_in_tmp()
        assert found == sorted(found) and "/tmp" in found
        assert file.name in found or len(found) > interpreter.MOST_IN_TMP


def test_a_registry_that_was_replaced_is_reported_by_its_error() -> None:
    reported = run("import warnings; warnings.filters = 7; del warnings.showwarning", "warnings")
    assert reported["changed"]["warnings.filters"][1] == "TypeError"
    assert reported["changed"]["warnings.showwarning"][1] == "AttributeError"
