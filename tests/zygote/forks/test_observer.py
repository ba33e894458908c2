"""What an observer notes of imports, in an interpreter of its own with the C extension preloaded as for a root Zygote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote import _native

REPOSITORY = Path(__file__).resolve().parents[3]
HARNESS = """
import json, os, sys
sys.path.insert(0, {repository!r})
os.environ.pop("LD_PRELOAD")
from sockd_zygote.forks import observer as observing
observing.STORE = {store!r}
sys.path.insert(0, {store!r} + "one")
from sockd_zygote.handlers import import_hooks
import_hooks.watch_imports()
before = [*sys.meta_path]
observer = observing.Observer()
with observer:
    exec({code!r}, {{"__name__": "package"}})
assert not {intact} or sys.meta_path == before and type(os.environ) is os._Environ, sys.meta_path
exec({after!r})
print(json.dumps(observer.report()))
"""


def seen(
    tmp_path: Path, code: str, after: str = "", files: dict[str, str] | None = None, *, intact: bool = True
) -> dict[str, Any]:
    """The report on code that imports what is in the distribution `one`."""
    for name, text in {"one/own.py": "", **(files or {})}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    program = HARNESS.format(repository=str(REPOSITORY), store=f"{tmp_path}/", code=code, after=after, intact=intact)
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(_native.__file__), "LD_BIND_NOW": "1"}
    done = subprocess.run([sys.executable, "-S", "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


CASES: dict[str, dict[str, Any]] = {
    "import own": {"found": ["own"]},
    "try: import absent.part\nexcept ImportError: pass": {"missed": ["absent"]},
    "import importlib.util; importlib.util.find_spec('absent')": {"missed": ["absent"]},
    "import space.part\ntry: import space.absent\nexcept ImportError: pass": {
        "namespaces": ["space"],
        "found": ["space.part"],
        "missed": ["space.absent"],
    },
    "import regular\ntry: import regular.absent\nexcept ImportError: pass": {"found": ["regular"]},
    "import importlib.metadata as m\ntry: m.version('Some_Thing.X')\nexcept Exception: pass": {
        "metadata": ["some-thing-x"]
    },
    "import importlib.metadata as m; m.entry_points(group='g')": {"groups": ["g"]},
    "import importlib.metadata as m; m.entry_points()": {"every_distribution": True},
    "import importlib.metadata as m; list(m.distributions())": {"every_distribution": True},
    "import pkgutil; list(pkgutil.iter_modules())": {"listed": ["", "regular", "space"]},
    "import os; os.listdir(observing_store + 'one/space')": {"listed": ["space"]},
    "import os; os.close(os.open('/', os.O_RDONLY)); list(os.scandir('/'))": {},
    "import os; os.path.exists('/var/task/a.cfg'); os.path.islink('b/c'); os.access('./d', 0); os.path.exists('/var/task/')": {
        "files": ["a.cfg", "b", "d"]
    },
    "import os, pathlib; pathlib.Path('.e').exists(); [*os.walk('/var/task/f')]; os.path.realpath('//var/task')": {
        "files": [".e", "f"]
    },
    "try: open('a.cfg')\nexcept OSError: pass": {"files": ["a.cfg"]},
    "import ctypes; c = ctypes.CDLL(None); c.fopen(b'g', b'r'); c.__xstat(1, b'h', bytes(500)); c.access(b'.', 0)": {
        "files": ["g", "h"]
    },
    "import os\ntry: os.listdir('/var/task')\nexcept OSError: pass": {"files": ["."]},
    "import os\ntry: os.scandir('/var/task/sub/x')\nexcept OSError: pass": {"files": ["sub"]},
    "import os; os.environ.get('A'); os.getenv('B'); 'C' in os.environ; os.environb.get(b'D')": {
        "variables": ["A", "B", "C", "D"]
    },
    "import os; os.environ['E'] = '1'; os.environ.pop('E'); os.putenv('F', '1')": {"variables": ["E", "F"]},
    "import os; dict(os.environ)": {"every_variable": True},
    "import os; {k: v for k, v in os.environ.items() if k.startswith('TQDM_')}": {"prefixes": ["TQDM_"]},
    "import os; [os.environ[k] for k in os.environ if k.startswith(('A_', 'B_'))]": {"prefixes": ["A_", "B_"]},
    "import os; [v for k, v in os.environ.items() if k.startswith('PA')]": {"prefixes": ["PA"], "every_variable": True},
    "import os; [k for k in os.environ if k.startswith('X_') or k == 'Y']": {
        "prefixes": ["X_"],
        "every_variable": True,
    },
    "import os; [k for k, v in os.environ.items() if k.startswith('X_') or '1' in v]": {
        "prefixes": ["X_"],
        "every_variable": True,
    },
    "import os, re; [k for k in os.environ if re.match('X_', k)]": {"every_variable": True},
    "import os, sys; sys.kept = [(k, k.startswith('X_')) for k in os.environ]": {
        "prefixes": ["X_"],
        "every_variable": True,
    },
    "import os, sys; sys.kept = list(os.environ.items())": {"every_variable": True},
    "import os; len(os.environ)": {"every_variable": True},
    "import posix; posix.environ.get(b'A')": {"every_variable": True},
    "from posix import environ": {"every_variable": True},
    "import posix; hasattr(posix, 'absent') or posix.getpid()": {},
    "import os; os.sysconf('SC_OPEN_MAX')": {"variables": ["RLIMIT_NOFILE"]},
    "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)": {"variables": ["RLIMIT_NOFILE"]},
    "import resource; resource.prlimit(0, resource.RLIMIT_NOFILE)": {"variables": ["RLIMIT_NOFILE"]},
    "import ctypes; ctypes.CDLL(None).getdtablesize()": {"variables": ["RLIMIT_NOFILE"]},
    "import ctypes; ctypes.CDLL(None).getenv(b'G'); ctypes.CDLL(None).secure_getenv(b'H')": {"variables": ["G", "H"]},
}
"""Code -> what must be in the report. Of found names and variables more may be there: those of the standard library."""


@pytest.mark.parametrize("code", CASES)
def test_what_is_reported(tmp_path: Path, code: str) -> None:
    files = {"one/space/part.py": "", "one/regular/__init__.py": ""}
    code = code.replace("observing_store", repr(f"{tmp_path}/"))
    report = seen(tmp_path, code, files=files)
    expected = CASES[next(each for each in CASES if each.replace("observing_store", repr(f"{tmp_path}/")) == code)]
    for field, value in report.items():
        wanted = expected.get(field, False if isinstance(value, bool) else [])
        if isinstance(value, bool):
            assert value == wanted, (field, report)
        elif field in ("found", "variables"):
            assert set(wanted) <= set(value), (field, report)
        else:
            own = [each for each in value if not each.startswith("_") and each not in ("nt", "winreg")]
            assert own == wanted, (field, report)


STARTS = {
    "os.system('printenv X > /dev/null')": ["printenv"],
    "os.popen('printenv X').close()": ["sh"],
    "subprocess.run(['printenv', 'X'], stdout=-3)": ["printenv"],
    "subprocess.run(['printenv', 'X'], stdout=-3, env={'X': '1'}, cwd='/')": ["printenv"],
    "subprocess.run('uname -p', stdout=-3, shell=True)": ["sh"],
    "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)": ["true"],
    "subprocess.run(['/bin/true'], close_fds=False)": ["true"],
    "pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)": ["a fork"],
}
"""What starts a child process -> the programs that are noted."""


@pytest.mark.parametrize("code", STARTS)
def test_a_child_process_uses_all_variables_and_files(tmp_path: Path, code: str) -> None:
    after = f"assert observer.processes == {STARTS[code]!r}, observer.processes"
    report = seen(tmp_path, f"import os, subprocess\n{code}", after)
    assert report["every_variable"] and report["files"] == ["."]


@pytest.mark.parametrize(
    "code",
    [
        "import platform; platform.processor()",
        "import ctypes.util; ctypes.util._findSoname_ldconfig('c')",
        "import platform; platform.architecture()",
        "import subprocess; subprocess.run(['/sbin/ldconfig', '-p'], stdout=-3, close_fds=False, env={})",
    ],
)
def test_commands_of_the_standard_library_use_what_any_program_does(tmp_path: Path, code: str) -> None:
    report = seen(tmp_path, code, "assert observer.processes == []")
    assert not report["every_variable"] and "." not in report["files"]
    assert {"LD_LIBRARY_PATH", "LD_PRELOAD"} <= {*report["variables"]}
    assert "processor" not in code or "PATH" in report["variables"]


def test_a_copy_of_all_variables_that_forks_make_again_is_no_read(tmp_path: Path) -> None:
    after = "import wsgiref.handlers; assert wsgiref.handlers.BaseHandler.os_environ == dict(os.environ)"
    report = seen(tmp_path, "import wsgiref.handlers", after)
    assert not report["every_variable"] and report["prefixes"] == [] and "PATH" not in report["variables"]
    code = "import os\ndef read_environ(): return dict(os.environ)\nKEPT = read_environ()"
    assert seen(tmp_path, code, "")["every_variable"]


def test_fonts_are_listed_by_the_variables_of_fontconfig(tmp_path: Path) -> None:
    code = (
        "import subprocess\ntry: subprocess.run(['fc-list', r'--format=%{file}\\n'], stdout=-3)\nexcept OSError: pass"
    )
    report = seen(tmp_path, code, "assert observer.processes == []")
    assert not report["every_variable"] and {"HOME", "FONTCONFIG_FILE", "LD_PRELOAD"} <= {*report["variables"]}


def test_nothing_is_reported_afterwards(tmp_path: Path) -> None:
    after = (
        "import ctypes; ctypes.CDLL(None).getenv(b'LATER'); os.environ.get('LATER2'); os.listdir('/')\n"
        "try: import later\nexcept ImportError: pass"
    )
    report = seen(tmp_path, "import own", after)
    assert "later" not in report["missed"] and not {"LATER", "LATER2"} & set(report["variables"])


def test_a_finder_that_a_package_puts_behind_is_asked_before_a_name_is_missed(tmp_path: Path) -> None:
    code = (
        "import sys, types, importlib.machinery\n"
        "class Late:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return importlib.machinery.ModuleSpec(name, self) if name == 'late' else None\n"
        "    def create_module(self, spec): return types.ModuleType('late')\n"
        "    def exec_module(self, module): pass\n"
        "sys.meta_path.append(Late())\n"
        "import late\n"
        "sys.meta_path.pop()\n"
    )
    report = seen(tmp_path, code)
    assert "late" in report["found"] and "late" not in report["missed"]


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.meta_path = sys.meta_path[1:]",
        "import sys; sys.meta_path = [*sys.meta_path]",
        "import os; os.environ = {}",
    ],
)
def test_who_takes_the_observer_away_is_found_out(tmp_path: Path, code: str) -> None:
    seen(tmp_path, "", "assert observer.complete")
    seen(tmp_path, code, "assert not observer.complete", intact=False)


def test_what_posix_keeps_is_in_its_place_afterwards(tmp_path: Path) -> None:
    after = "import posix; assert posix.environ is os.environ._data and not hasattr(posix, '__getattr__')"
    seen(tmp_path, "", after)
    report = seen(
        tmp_path, "import posix; posix.environ = {b'A': b'1'}", "import posix; assert posix.environ == {b'A': b'1'}"
    )
    assert not report["every_variable"]


def test_a_package_counts_only_the_finders_that_its_own_start_has(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "count = len(sys.meta_path); kept = sys.kept = sys.meta_path\n"
        "sys.meta_path.insert(-1, 'last but one'); sys.meta_path.insert(1, 'second'); sys.meta_path.append('last')\n"
        "assert sys.meta_path[-1] == 'last' and len(sys.meta_path) == count + 3\n"
        "for each in ('last but one', 'second', 'last'): sys.meta_path.remove(each)\n"
        "import own\n"
        "sys.meta_path[:] = [*sys.meta_path]\n"
    )
    after = "assert sys.kept is sys.meta_path and list(sys.meta_path) == before and sys.kept == before\nimport csv"
    report = seen(tmp_path, code, after)
    assert "own" in report["found"] and "csv" not in report["found"]


def test_files_are_opened_as_by_the_c_library(tmp_path: Path) -> None:
    made = tmp_path / "made"
    after = (
        f"import ctypes; made = {os.fsencode(made)!r}; os.umask(0)\n"
        "os.close(os.open(made, os.O_CREAT | os.O_WRONLY, 0o640)); assert os.stat(made).st_mode & 0o777 == 0o640\n"
        "os.symlink('nowhere', made + b'.link'); assert os.lstat(made + b'.link').st_size == len('nowhere')\n"
        "top = os.open(os.path.dirname(made), os.O_RDONLY)\n"
        "os.close(os.open('more', os.O_CREAT | os.O_WRONLY, 0o604, dir_fd=top))\n"
        "assert os.stat('more', dir_fd=top).st_mode & 0o777 == 0o604 and os.access('more', os.R_OK, dir_fd=top)\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "assert [call(*args) for call, args in ((c.stat, (b'/absent', bytes(500))), (c.access, (b'/absent', 0)),\n"
        "    (c.open, (b'/absent', 0)), (c.fopen, (b'/absent', b'r')), (c.statx, (-100, b'/absent', 0, 0, bytes(500))))]\\\n"
        "    == [-1, -1, -1, 0, -1] and ctypes.get_errno() == 2\n"
    )
    seen(tmp_path, "", after)


def test_getenv_is_as_the_c_librarys(tmp_path: Path) -> None:
    after = (
        "import ctypes; get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p\n"
        "os.environ.update(AB='1', A='2', EMPTY='')\n"
        "assert [get(n) for n in (b'A', b'AB', b'ABC', b'EMPTY', b'', b'A=2')] == [b'2', b'1', None, b'', None, None]\n"
    )
    seen(tmp_path, "", after)


def test_without_the_preload_nothing_is_observed() -> None:
    with pytest.raises(RuntimeError, match="LD_PRELOAD"):
        _native.observe(print)
