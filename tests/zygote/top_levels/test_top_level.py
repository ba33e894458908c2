"""A recording of a top level: the imports of the function's code in order, and what that code has changed before each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zygote.top_levels.starts import Files, Recording, Starts, Step

BUSY = "import time\nend = time.perf_counter() + {0}\nwhile time.perf_counter() < end: pass\n"
LAST = "import sys\nassert 'ListsSubclasses' not in repr(sys.getprofile())\nx = 1\n"
DISTRIBUTIONS: dict[str, Files] = {
    "base": {"base.py": "LEVEL = 1\nitems = {}\nclass Settings:\n    mode = 'a'\n    options = {}\n"},
    "tops": {"tops/__init__.py": "import base\n", "tops/part.py": "import base, tops.inner\n", "tops/inner.py": ""},
    "deep": {"deep.py": "import tops.part\n"},
    "other": {"other.py": "VALUE = 1\n"},
    "sets": {"sets.py": "import base, os\nbase.items['sets'] = 1\nos.environ['SETS'] = '1'\n"},
    "six": {
        "six.py": "import sys, types\nclass Lazy(types.ModuleType): pass\n"
        "sys.modules['six.moves'] = moves = Lazy('six.moves')\n"
        "sys.modules['six.moves.urls'] = moves.urls = Lazy('six.moves.urls')\n"
    },
    "pillow": {
        "PIL/__init__.py": "VERSION = 1\n",
        "PIL/Image.py": "import base\nfrom . import modes\n",
        "PIL/modes.py": "",
    },
    "asks": {"asks.py": "import helper\n"},
    "half": {"half.py": "import os\nos.environ['HALF'] = '1'\nimport base, absent_one\n"},
    "lazy": {
        "lazy/__init__.py": "import importlib\ndef __getattr__(name):\n"
        "    return importlib.import_module(f'lazy.{name}')\n",
        "lazy/late.py": "import base\n",
    },
    "threads": {
        "threads.py": "import threading\nthread = threading.Thread(target=__import__, args=('base',))\n"
        "thread.start()\nthread.join()\n"
    },
    "plugins": {"plugins.py": "import base\nfound = [each.__name__ for each in base.Settings.__subclasses__()]\n"},
    "proxied": {
        "proxied/__init__.py": "import sys\nfrom . import part\n"
        "class Proxy:\n    def __init__(self, module): self.module = module\n"
        "    def __getattr__(self, name): return getattr(self.module, name)\n"
        "for name in (__name__, part.__name__): sys.modules[name] = Proxy(sys.modules[name])\n",
        "proxied/part.py": "",
    },
    "slow": {"slow.py": BUSY.format(0.01) + "import slower\n"},
    "slower": {"slower.py": BUSY.format(0.2)},
}


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    made = Starts(tmp_path)
    for key, files in DISTRIBUTIONS.items():
        made.install(key, files)
    return made


def packages(recording: Recording) -> list[tuple[str, str, int]]:
    """(name, distribution, outer) of each step that is no standard module's."""
    return [(step.name, step.key, step.outer) for step in recording.steps if step.key]


def test_the_imports_of_the_code_are_steps_in_their_order(starts: Starts) -> None:
    recording = starts.record("import other, base\n")
    assert packages(recording) == [("other", "other", -1), ("base", "base", -1)]
    assert all(step.before == "" and step.writes == () and step.modules == (step.name,) for step in recording.steps)


def test_what_one_distribution_imports_of_another_is_a_step_within(starts: Starts) -> None:
    recording = starts.record("import deep\n")
    assert packages(recording) == [
        ("deep", "deep", -1),
        ("tops", "tops", 0),
        ("tops.part", "tops", 0),
        ("base", "base", 1),
    ]
    assert recording.step("tops.part").modules == ("tops.part", "tops.inner")


def test_what_was_imported_before_is_no_part_of_a_later_step(starts: Starts) -> None:
    recording = starts.record("import base, deep\nimport base\n")
    assert packages(recording) == [
        ("base", "base", -1),
        ("deep", "deep", -1),
        ("tops", "tops", 1),
        ("tops.part", "tops", 1),
    ]


@pytest.mark.parametrize("code", ["import PIL.Image\n", "from PIL import Image\n", "import PIL\nimport PIL.Image\n"])
def test_a_package_comes_before_its_submodule(starts: Starts, code: str) -> None:
    recording = starts.record(code)
    assert packages(recording) == [("PIL", "pillow", -1), ("PIL.Image", "pillow", -1), ("base", "base", 1)]
    assert recording.step("PIL").modules == ("PIL",)
    assert recording.step("PIL.Image").modules == ("PIL.Image", "PIL.modes")


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ("import importlib\nimportlib.import_module('tops')\n", {}),
        ("def first():\n    import tops\nfirst()\n", {}),
        ("import helper\n", {"helper.py": "import tops\n"}),
        (
            "import shop.orders\n",
            {
                "shop/__init__.py": "",
                "shop/orders.py": "from .inner import x\n",
                "shop/inner.py": "import tops\nx = 1\n",
            },
        ),
        ("exec('import tops')\n", {}),
        ("try:\n    import tops\nexcept ImportError:\n    pass\n", {}),
    ],
)
def test_whichever_way_the_code_asks_for_it(starts: Starts, code: str, files: Files) -> None:
    recording = starts.record(code, files)
    tops = recording.step("tops")
    assert (tops.outer, tops.before) == (-1, "")
    assert recording.step("base").outer == recording.names.index("tops")
    assert not {"helper", "shop", "shop.orders", "f"} & {name for step in recording.steps for name in step.modules}


def test_a_standard_module_is_a_step_only_where_the_code_asks_for_it(starts: Starts) -> None:
    recording = starts.record("import json\nimport sets\nimport colorsys\n")
    assert [step.name for step in recording.steps if not step.key] == ["json", "colorsys"]
    assert {"json", "json.decoder", "re"} <= set(recording.step("json").modules)
    within = starts.record("import six\n")
    assert within.names == ["six"] and "types" in within.step("six").modules


CHANGES: dict[str, tuple[str, str]] = {
    "a variable": ("import os\nos.environ['TQDM_DISABLE'] = '1'\n", "os.environ['TQDM_DISABLE']"),
    "a variable by putenv's name": ("import os\nos.environ.setdefault('A', '1')\n", "os.environ['A']"),
    "a module's name": ("import base\nbase.LEVEL = 2\n", "base.LEVEL"),
    "an item of a module's table": ("import base\nbase.items['f'] = 1\n", "base.items"),
    "an attribute of a module's class": ("import base\nbase.Settings.mode = 'b'\n", "base.Settings"),
    "an item of a table of a module's class": ("import base\nbase.Settings.options['size'] = 5\n", "base.Settings"),
    "a function of the standard library": ("import json\njson.dumps = len\n", "json.dumps"),
    "a method of the standard library": ("import json\njson.JSONEncoder.default = len\n", "json.encoder.JSONEncoder"),
    "a builtin": ("import builtins\nbuiltins._ = str\n", "builtins"),
    "sys.path": ("import sys\nsys.path.insert(0, 'vendor')\n", "sys.path"),
    "a module that is blocked": ("import sys\nsys.modules['other'] = None\n", "sys.modules['other']"),
    "a module that is put in": (
        "import sys, types\nsys.modules['stub'] = types.ModuleType('stub')\n",
        "sys.modules['stub']",
    ),
    "a module that is forgotten": ("import sys, base\ndel sys.modules['base']\n", "sys.modules['base']"),
    "the working directory": ("import os\nos.chdir('/')\n", "working directory"),
    "a warnings filter": ("import warnings\nwarnings.simplefilter('error')\n", "warnings.filters"),
    "a log level": ("import logging\nlogging.getLogger('a').setLevel(10)\n", "the logger 'a'"),
    "the root logger": ("import logging\nlogging.basicConfig(level=10)\n", "the root logger"),
    "a signal handler": (
        "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n",
        "the handler of signal '10'",
    ),
    "a socket timeout": ("import socket\nsocket.setdefaulttimeout(3)\n", "socket"),
    "the recursion limit": ("import sys\nsys.setrecursionlimit(5000)\n", "sys.getrecursionlimit()"),
    "an exit callback": ("import atexit\natexit.register(int)\n", "atexit callbacks"),
    "a codec": ("import logging\nlogging.addLevelName(5, 'TRACE')\n", "logging levels"),
    "a thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "threads",
    ),
    "the umask": ("import os\nos.umask(os.umask(0) ^ 0o111)\n", "umask"),
    "a finder": (
        "import sys\nsys.meta_path.append(type('F', (), {'find_spec': lambda *_: None})())\n",
        "sys.meta_path",
    ),
}


@pytest.mark.parametrize("which", CHANGES)
def test_what_the_code_changes_is_named_at_the_next_import(starts: Starts, which: str) -> None:
    code, words = CHANGES[which]
    recording = starts.record(f"{code}import tops\n")
    assert recording.failure == ""
    changed = recording.step("tops")
    assert words in changed.before
    assert all(step.before == "" for step in recording.steps[: recording.steps.index(changed)])


def test_a_subclass_is_a_change_to_an_import_that_lists_them(starts: Starts) -> None:
    code = "import sys, base\nclass Mine(base.Settings): pass\nimport tops\nimport plugins\nimport other\n"
    recording = starts.record(f"{code}assert 'ListsSubclasses' not in repr(sys.getprofile())\n")
    assert recording.failure == ""
    words = "subclasses, which plugins lists,"
    assert [step.before for step in recording.steps if step.key] == ["", "", words, words]
    assert [step.before for step in starts.record("import base\nimport plugins\n").steps] == ["", ""]


def test_imports_of_a_module_of_its_own_are_shared_after_a_subclass(starts: Starts) -> None:
    files = {
        "own/__init__.py": "import base\n",
        "own/part.py": "import tops\nfrom .last import x\n",
        "own/last.py": LAST,
    }
    recording = starts.record("import base\nclass Mine(base.Settings): pass\nimport own.part\n", files)
    assert [(step.name, step.before) for step in recording.steps if step.key] == [("base", ""), ("tops", "")]
    words = "subclasses, which plugins lists,"
    recording = starts.record("import base\nclass Mine(base.Settings): pass\nimport own.part, plugins\n", files)
    assert (recording.failure, recording.step("plugins").before) == ("", words)


def test_subclasses_of_another_distributions_class_are_the_doing_of_their_import(starts: Starts) -> None:
    starts.install(
        "derives", {"derives.py": "import base, atexit\nclass Mine(base.Settings): pass\natexit.register(int)\n"}
    )
    recording = starts.record("import atexit\nimport base\nimport derives\n")
    assert recording.step("derives").writes == ("atexit callbacks", "subclasses of base.Settings")


def test_a_thread_of_own_code_is_a_change_to_an_import_that_makes_one(starts: Starts) -> None:
    starts.install("worker", {"worker.py": "import threading\nthread = threading.Thread()\n"})
    recording = starts.record("import threading, base\nown = threading.Thread()\nimport tops\nimport worker\n")
    assert recording.failure == ""
    before = [step.before for step in recording.steps if step.key]
    assert before == ["", "", "the numbers of threads, of which worker takes one,"]
    recording = starts.record("import threading, worker\nown = threading.Thread()\nimport other\n")
    assert [step.before for step in recording.steps if step.key] == ["", ""]
    assert recording.step("worker").writes == ("threading._counter",)


def test_a_module_that_puts_an_object_in_its_place_is_its_distributions(starts: Starts) -> None:
    recording = starts.record("import proxied\nimport other\n")
    assert packages(recording) == [("proxied", "proxied", -1), ("other", "other", -1)]
    assert [step.before for step in recording.steps] == ["", ""]


def test_every_import_after_a_change_has_it(starts: Starts) -> None:
    recording = starts.record(
        "import base, os\nos.environ['A'] = '1'\nimport other\ndel os.environ['A']\nimport tops\n"
    )
    assert [(step.name, step.before) for step in recording.steps] == [
        ("base", ""),
        ("other", "os.environ['A']"),
        ("tops", "os.environ['A']"),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "import json, re\njson.loads('{\"a\": [1]}')\nre.compile('a+b*').match('ab')\n",
        "import os, logging\nLOG = logging.getLogger('root')\nTABLE = os.environ.get('TABLE', 'none')\n",
        "class Handler:\n    x = {}\ndef decorated(f): return f\n@decorated\ndef handler(event, context): return 1\n",
        "import base\nX = [base.LEVEL] * 3\nprint(X)\n",
        "import re\nre.compile('a', re.I | re.X | re.S | re.M)\n",
        "import platform\nHOST = platform.platform(), platform.python_version(), platform.python_build(), platform.uname()\n",
        "import datetime, os\ndatetime.datetime.strptime('2020', '%Y')\nos.path.expandvars('$HOME')\n",
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int = 1\n",
        "import typing\nT = typing.Optional[typing.List[int]]\n",
        "import functools\n@functools.lru_cache\ndef f(x): return x\nf(1)\n",
        "import enum\nclass E(enum.Enum):\n    A = 1\n",
    ],
)
def test_ordinary_code_between_imports_changes_nothing(starts: Starts, code: str) -> None:
    assert [step.before for step in starts.record(f"{code}import tops\n").steps if step.before] == []


def test_a_change_by_a_module_of_the_code_counts(starts: Starts) -> None:
    files = {"settings.py": "import os\nos.environ['A'] = '1'\n"}
    recording = starts.record("import settings\nimport base\n", files)
    assert recording.step("base").before == "os.environ['A']"


def test_what_an_import_changes_outside_is_its_own_doing(starts: Starts) -> None:
    recording = starts.record("import base\nimport sets\nimport other\n")
    assert [step.before for step in recording.steps] == ["", "", ""]
    assert recording.step("sets").writes == ("base.items", "os.environ['SETS']")
    assert recording.step("base").writes == recording.step("other").writes == ()


def test_what_an_import_caches_or_loads_as_a_part_of_its_modules_is_no_change(starts: Starts) -> None:
    starts.install("flags", {"flags.py": "import re\nPATTERN = re.compile('a', re.I | re.X | re.S | re.M)\n"})
    starts.install("extends", {"extends.py": "import _lsprof\n"})
    starts.install("native", {"native.py": "import ctypes\n"})
    recording = starts.record("import re, flags, extends, native\n")
    assert recording.step("flags").writes == recording.step("extends").writes == ()
    assert "shared libraries" in recording.step("native").writes  # libffi, which is no extension module


def test_a_distribution_that_imports_the_code_is_not_shared(starts: Starts) -> None:
    recording = starts.record("import other, asks, base\n", {"helper.py": "H = 1\n"})
    words = "what asks imports, as that is code of its own,"
    assert [(step.name, step.before) for step in recording.steps] == [("other", ""), ("asks", words), ("base", words)]


@pytest.mark.parametrize("code", ["import absent_one", "import base.absent_one", "from other import absent_one"])
def test_a_missing_module_changes_nothing(starts: Starts, code: str) -> None:
    recording = starts.record(f"try:\n    {code}\nexcept ImportError:\n    pass\nimport tops\n")
    assert recording.step("tops").before == ""


def test_what_a_failed_import_has_imported_is_not_shared(starts: Starts) -> None:
    recording = starts.record("import other\ntry:\n    import half\nexcept ImportError:\n    pass\nimport tops\n")
    words = "what is loaded, as its import of half fails,"
    assert [(step.name, step.before) for step in recording.steps] == [("other", ""), ("base", words), ("tops", words)]


def test_a_failed_import_within_a_package_is_the_packages(starts: Starts) -> None:
    starts.install("tries", {"tries.py": "try:\n    import half\nexcept ImportError:\n    pass\n"})
    recording = starts.record("import tries, other\n")
    assert [step.before for step in recording.steps] == ["", "", ""]
    assert packages(recording) == [("tries", "tries", -1), ("base", "base", 0), ("other", "other", -1)]


def test_modules_that_a_package_makes_are_its_own(starts: Starts) -> None:
    recording = starts.record("from six.moves import urls\nimport base\n")
    assert {"six", "six.moves", "six.moves.urls"} == {
        name for step in recording.steps if step.key == "six" for name in step.modules if name.startswith("six")
    }
    assert recording.step("base").before == "" and recording.step("six").outer == -1


def test_a_submodule_that_comes_by_an_attribute_is_a_step_of_its_own(starts: Starts) -> None:
    recording = starts.record("import lazy\nlazy.late\nimport other\n")
    assert [name for name, key, _ in packages(recording)] == ["lazy", "lazy.late", "base", "other"]
    assert recording.step("other").before == ""


def test_a_package_may_take_modules_of_the_interpreter_away_meanwhile(starts: Starts) -> None:
    """As eventlet does, to import `threading` once more."""
    starts.install("away-1-aaaaaaaaaaaa", {"away.py": "import sys\nkept = sys.modules.pop('_thread')\nimport base\n"})
    recording = starts.record("import away\nimport tops\n")
    assert recording.failure == "" and "tops" in recording.names


def test_a_package_may_have_an_object_whose_dict_cannot_be_had(starts: Starts) -> None:
    """As ddtrace has: proxies in C of objects without one."""
    code = "class Other: pass\nclass Odd:\n    __slots__ = ()\n    __dict__ = vars(Other)['__dict__']\nodd = Odd()\n"
    starts.install("odd-1-aaaaaaaaaaaa", {"odd.py": code})
    recording = starts.record("import odd\nimport tops\n")
    assert recording.failure == "" and {"odd", "tops"} <= {*recording.names}


def test_imports_in_another_thread_end_the_sharing(starts: Starts) -> None:
    thread = "import threading\nthread = threading.Thread(target=__import__, args=('base',))\nthread.start()\nthread.join()\n"
    recording = starts.record(f"import other\n{thread}import tops\n")
    assert recording.step("other").before == ""
    assert recording.step("tops").before == "what is loaded, as a thread of it imports base,"


def test_a_thread_of_a_package_ends_the_sharing_behind_it(starts: Starts) -> None:
    recording = starts.record("import threads\nimport other\n")
    assert recording.step("other").before == "what is loaded, as a thread of it imports base,"
    reported = {name for step in recording.steps for name in step.modules}
    assert {"threads", "base", "other"} <= reported


def test_a_module_besides_has_the_key_of_its_own_distribution(starts: Starts) -> None:
    step = starts.record("import threads\n").step("threads")
    keys = dict(zip(step.modules, step.keys, strict=True))
    assert (keys["threads"], keys["base"], keys["threading"]) == ("threads", "base", "")


def test_imports_of_a_child_process_are_not_recorded(starts: Starts) -> None:
    child = "import os\npid = os.fork()\nif not pid:\n    import base\n    os._exit(0)\nos.waitpid(pid, 0)\n"
    recording = starts.record(f"{child}import other\n")
    assert packages(recording) == [("other", "other", -1)] and recording.step("other").before == ""


def test_a_top_level_that_fails_is_recorded_up_to_there(starts: Starts) -> None:
    recording = starts.record("import base\nraise KeyError('x')\nimport other\n")
    assert recording.failure == "KeyError('x')" and packages(recording) == [("base", "base", -1)]


def test_seconds_are_each_modules_own(starts: Starts) -> None:
    slow, slower = (seconds_of(starts.record("import slow\n"), name) for name in ("slow", "slower"))
    assert slow >= 0.01 and slower >= 0.2
    assert slow < slower, "the inner import counts for the outer one, too"


def seconds_of(recording: Recording, name: str) -> float:
    step: Step = recording.step(name)
    return dict(zip(step.modules, step.seconds, strict=True))[name]


def test_the_import_system_is_as_before_afterwards(starts: Starts) -> None:
    reported = starts.run(UNCHANGED)
    assert reported == {"same": True, "loaded": []}


UNCHANGED = """
import sys
sys.path.append(sys.argv[1])
from sockd_zygote.forks.module_kinds import Kinds
from sockd_zygote.top_levels.top_level import Recorder
bootstrap = sys.modules["_frozen_importlib"]
load, loaded = bootstrap._find_and_load_unlocked, set(sys.modules)
with Recorder(Kinds(), "f"):
    assert bootstrap._find_and_load_unlocked is not load
print({"same": bootstrap._find_and_load_unlocked is load, "loaded": sorted(set(sys.modules) - loaded)})
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import codecs\ncodecs.register(lambda name: None)\n", "the codecs (codecs.register)"),
        (
            "from _codecs import register_error\nregister_error('mine', lambda error: ('', error.end))\n",
            "the error handlers of codecs (codecs.register_error)",
        ),
        ("import sys\nsys.addaudithook(lambda event, args: None)\n", "the audit hooks (sys.addaudithook)"),
        ("import os\nos.register_at_fork(before=lambda: None)\n", "what runs at a fork (os.register_at_fork)"),
        ("import os\nos.putenv('OMP_NUM_THREADS', '2')\n", "variables that only code in C sees (os.putenv)"),
        ("import posix\nposix.unsetenv('PATH')\n", "variables that only code in C sees (os.unsetenv)"),
    ],
)
def test_a_registration_that_nothing_lists_is_a_change(starts: Starts, code: str, words: str) -> None:
    recording = starts.record(code + "import base\n")
    assert recording.steps[-1].before == words
