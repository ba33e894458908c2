"""Imports that a start may leave out: no recording of another start proves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zygote.top_levels.starts import Starts

PACKAGE = """
def call(function): return function()
get = call
TIMES = 2
class Registry:
    def get(self, function): return function()
    add = info = get
class Stream:
    def write(self, text): pass
"""


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    made = Starts(tmp_path)
    for name in ("base", "other", "calls"):
        made.install(name, {f"{name}.py": PACKAGE})
    made.install("configured", {"configured.py": "import logging\nlogging.basicConfig(level=0)\n"})
    return made


CERTAIN = (
    "import other\n",
    "from other import call as again; import base\n",
    "try:\n    import other\nexcept ImportError:\n    other = None\n",
    "try:\n    import absent_one\nexcept ImportError:\n    import other\n",
    "try:\n    import base\n    import other\nfinally:\n    pass\n",
    "try:\n    import base\nexcept ImportError:\n    pass\nelse:\n    import other\n",
    "with open('/dev/null') as file:\n    file.read()\n    import other\n",
    "import contextlib\nwith contextlib.suppress(ImportError):\n    import other\n",
    "import sys\nif sys.version_info >= (3, 8):\n    import other\nelse:\n    import base\n",
    "import sys\nif sys.platform.startswith('linux') and sys.version_info >= (3, 8):\n    import other\n",
    "def create():\n    import other\n    return other\napp = create()\n",
    "class Settings:\n    import other\n",
    "import importlib\nother = importlib.import_module('other')\n",
    "other = __import__('other')\n",
    "def decorated(function):\n    import other\n    return function\n@decorated\ndef handler(event): pass\n",
    "import calls\ndef made():\n    import other\ncalls.call(made)\n",
    "import calls\ndef made():\n    import other\nif calls.call(made):\n    pass\n",
    "import calls\ndef made():\n    import other\n    return []\nfor each in calls.call(made):\n    pass\n",
    "import calls\ndef made():\n    import other\n    return open('/dev/null')\nwith calls.call(made) as file:\n    pass\n",
    "import os\nif os.environ.get('STAGE', 'dev') == 'dev':\n    import other\n",
    "import os, sys\nif sys.platform in os.environ.get('ONLY_ON', 'linux'):\n    import other\n",
    "import os\nSTAGE = os.getenv('STAGE', 'dev').lower()\nif STAGE in ('dev', 'test'):\n    import other\n",
    "if __name__ == '__main__':\n    import base\nelse:\n    import other\n",
    "import contextlib\nwith contextlib.suppress(OSError):\n    import other\n",
    "class App:\n    def __init__(self):\n        import other\napp = App()\n",
    "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('default')\nimport other\n",
)
UNCERTAIN = (
    "import os, sys\nif sys.version_info >= (3, 8) and os.urandom(1):\n    import other\n",
    "import os\nif os.urandom(1) != b'':\n    import other\n",
    "import os\nif os.urandom(1) == b'':\n    import base\nelse:\n    import other\n",
    "for name in {'other'}:\n    __import__(name)\n",
    "import importlib\nname = 'other'\nother = importlib.import_module(name)\n",
    "[__import__(name) for name in ('other',)]\n",
    "flag = True\nflag and __import__('other')\n",
    "found = __import__('other') if True else None\n",
    "import time\ntry:\n    time.sleep(0)\n    import other\nexcept OSError:\n    pass\n",
    "import contextlib\nwith contextlib.suppress(OSError):\n    open('/dev/null').close()\n    import other\n",
    "try:\n    raise OSError\nexcept OSError:\n    import other\n",
    "def create(flag):\n    if not flag:\n        return None\n    import other\ncreate(True)\n",
    "while True:\n    import other\n    break\n",
    "match 1:\n    case 1:\n        import other\n",
    "(lambda: __import__('other'))()\n",
    "import os\ndef load():\n    import other\nif os.urandom(1):\n    load()\n",
    "import os\ndef one(): import other\ndef two(): pass\nload = two if os.urandom(1) == b'' else one\nload()\n",
    "def one(): import other\nload = {'a': one}\nload['a']()\n",
    "try:\n    with open('/dev/null') as file:\n        file.read()\n        import other\nexcept OSError:\n    pass\n",
    "import os\nif os.environ.get('AWS_LAMBDA_LOG_STREAM_NAME', '1') == '1':\n    import other\n",
    "class One:\n    def load(self): import other\nmade = One()\nmade.load()\n",
)


@pytest.mark.parametrize("code", CERTAIN)
def test_an_import_that_each_start_comes_to_is_shared(starts: Starts, code: str) -> None:
    recording = starts.record(code)
    assert recording.failure == "" and recording.step("other").before == ""


@pytest.mark.parametrize("code", UNCERTAIN)
def test_an_import_that_a_start_may_leave_out_is_not_shared(starts: Starts, code: str) -> None:
    recording = starts.record(f"import base\n{code}")
    assert recording.failure == "" and recording.step("base").before == ""
    assert recording.step("other").before.startswith("what it imports from one start to another (line ")


def test_a_decision_in_a_module_of_the_code_counts(starts: Starts) -> None:
    files = {"own.py": "import os\nif os.urandom(1):\n    import other\n", "plain.py": "import base\n"}
    recording = starts.record("import plain, own\n", files)
    assert recording.step("base").before == "" and "(line 3 of own.py)" in recording.step("other").before
    recording = starts.record("import os\nif os.urandom(1):\n    import plain\n", files)
    assert "(line 3 of f.py)" in recording.step("base").before


def test_what_fails_in_a_module_of_the_code_is_caught_outside(starts: Starts) -> None:
    files = {"own.py": "import os\nos.stat('/')\nimport other\n", "plain.py": "X = 1\nimport other\n"}
    caught = "try:\n    import {}\nexcept {}:\n    pass\n"
    assert starts.record(caught.format("plain", "Exception"), files).step("other").before == ""
    assert starts.record(caught.format("own", "ImportError"), files).step("other").before == ""
    assert "(line 3 of own.py)" in starts.record(caught.format("own", "Exception"), files).step("other").before


def test_a_module_of_the_code_with_a_computed_name_is_not_certain(starts: Starts) -> None:
    files = {"plugin.py": "import other\n"}
    recording = starts.record("import importlib, os\nimportlib.import_module('plug' + 'in')\n", files)
    assert "(line 2 of f.py)" in recording.step("other").before
    assert starts.record("import importlib\nimportlib.import_module('plugin')\n", files).step("other").before == ""


DECISIONS = (
    "if os.urandom(1) == b'':\n    os.environ['A'] = '1'\n",
    "if os.urandom(1) == b'':\n    sys.path.append('/x')\n",
    "if os.urandom(1) == b'':\n    base.LEVEL = 1\n",
    "if os.urandom(1) == b'':\n    import absent_one\n",
    "if os.urandom(1) == b'':\n    base.call(len)\n",
    "os.urandom(1) == b'' and os.putenv('A', '1')\n",
    "found = base.call(dict) if os.urandom(1) == b'' else None\n",
    "for name in os.listdir('/dev/shm'):\n    base.call(str)\n",
    "[base.call(str) for name in os.listdir('/dev/shm')]\n",
    "for name in ('a', 'b'):\n    base.call(str)\n    if os.urandom(1) == b'':\n        break\n",
    "if os.urandom(1) == b'':\n    Path('/dev/shm/own-code').write_text('a')\n",
    "if os.urandom(1) == b'':\n    time.tzset()\n",
    "if os.urandom(1) == b'':\n    json.loads('{}', object_hook=base.call)\n",
    "def steps():\n    yield base.call(str)\ngo = steps()\nif os.urandom(1) == b'':\n    next(go)\n",
    "if os.urandom(1) == b'':\n    getattr(base, 'lazy', None)\n",
    "while os.urandom(1) == b'':\n    base.call(str)\n",
    "if os.urandom(1) == b'':\n    base.get(str)\n",
    "registry = base.Registry()\nif os.urandom(1) == b'':\n    registry.get(str)\n",
    "registry = base.Registry()\nif os.urandom(1) == b'':\n    registry.add(str)\n",
    "path = sys.path\nif os.urandom(1) == b'':\n    path.append('/x')\n",
    "try:\n    os.stat('/')\nexcept OSError:\n    base.call(str)\n",
    "try:\n    os.stat('/')\n    base.call(str)\nexcept OSError:\n    pass\n",
    "with contextlib.suppress(OSError):\n    os.stat('/')\n    base.call(str)\n",
    "def choose():\n    if os.urandom(1) == b'':\n        os.environ['A'] = '1'\nchoose()\n",
    "def choose():\n    if os.urandom(1):\n        return\n    os.environ['A'] = '1'\nchoose()\n",
    "def change():\n    os.stat('/')\n    base.call(str)\ntry:\n    change()\nexcept OSError:\n    pass\n",
    "match os.urandom(1):\n    case b'':\n        base.call(str)\n",
    "class Own:\n    if os.urandom(1) == b'':\n        base.LEVEL = 1\n",
    "def choose(function):\n    if os.urandom(1) == b'':\n        base.LEVEL = 1\n    return function\n@choose\ndef f(): pass\n",
)
NO_DECISIONS = (
    "if os.urandom(1):\n    LEVEL = 1\nelse:\n    LEVEL = 2\n",
    "names = []\nfor name in os.listdir('/'):\n    names.append(name.strip())\n",
    "def unused():\n    if os.urandom(1) == b'':\n        os.environ['A'] = '1'\n",
    "if os.environ.get('STAGE') == 'prod':\n    sys.path.append('/x')\n",
    "import logging\nlog = logging.getLogger('a')\nif os.urandom(1):\n    log.info('a')\n",
    "settings = {}\nif os.urandom(1):\n    settings.get('a')\n    sys.stdout.write('a\\n')\n",
    "try:\n    import absent_one\nexcept ImportError:\n    absent_one = None\n",
    "def level():\n    if os.urandom(1):\n        return 1\n    return 2\nLEVEL = level()\n",
    "class Own:\n    def __init__(self):\n        if os.urandom(1):\n            self.level = 1\nown = Own()\n",
    "for name in ('a', 'b'):\n    os.getenv(name)\n",
    "root = os.path.join('/a', 'b') if os.urandom(1) else Path('/c')\n",
    "try:\n    size = os.stat('/').st_size\nexcept OSError:\n    size = 0\n",
)


BEGIN = "import contextlib, json, os, sys, time, base\nfrom pathlib import Path\n"


@pytest.mark.parametrize("code", DECISIONS)
def test_what_own_code_may_do_in_another_start_ends_the_sharing(starts: Starts, code: str) -> None:
    recording = starts.record(f"{BEGIN}{code}import other\n")
    assert recording.failure == "" and recording.step("base").before == ""
    assert recording.step("other").before.startswith("what it does from one start to another (line ")


@pytest.mark.parametrize("code", NO_DECISIONS)
def test_decisions_about_own_names_alone_change_nothing(starts: Starts, code: str) -> None:
    recording = starts.record(f"{BEGIN}{code}import other\n")
    assert recording.failure == "" and recording.step("other").before == ""


def test_the_profile_function_of_own_code_stays(starts: Starts) -> None:
    code = "import sys\ndef look(*_): pass\nsys.setprofile(look)\nimport other\nassert sys.getprofile() is look\n"
    recording = starts.record(code)
    assert recording.failure == "" and recording.step("other").before == "sys.gettrace()"


def test_own_code_has_no_profile_function_in_imports(starts: Starts) -> None:
    starts.install("looks", {"looks.py": "import sys\nFOUND = sys.getprofile()\n"})
    recording = starts.record("import looks\nassert looks.FOUND is None\n")
    assert recording.failure == ""


def test_code_without_its_text_is_not_certain(starts: Starts) -> None:
    recording = starts.record("exec(compile('import other', '/nowhere.py', 'exec'))\n")
    assert "(line 1 of f.py)" in recording.step("other").before


def test_an_answer_of_the_network_ends_the_sharing(starts: Starts) -> None:
    """What it has passed on may come to an import by any way that no branch shows."""
    code = (
        "import socket, base\nwith socket.socket() as client:\n    client.connect_ex(('127.0.0.1', 9))\nimport other\n"
    )
    recording = starts.record(code)
    assert recording.failure == "" and recording.step("base").before == ""
    assert recording.step("other").before == "what it may do next, by an answer of the network,"


def test_a_socket_alone_is_no_answer(starts: Starts) -> None:
    recording = starts.record("import socket\nsocket.socket().close()\nsocket.socketpair()\nimport other\n")
    assert recording.failure == "" and recording.step("other").before == ""


def test_a_variable_that_own_code_sets_decides_in_that_start_alone(starts: Starts) -> None:
    code = "import os\nSTAGE = os.environ['STAGE'] = 'a'\nif os.environ['STAGE'] == 'a':\n    import other\n"
    assert starts.record(code).step("other").before != ""


PASSED_ON = (
    "base.call([dict, list][time.time_ns() % 2])\n",
    "base.LEVEL = time.time() > 0\n",
    "START = time.time()\nbase.call(START.is_integer)\n",
    "def use(value):\n    base.call(value)\nuse(dict if time.time() else list)\n",
    "class Own:\n    def __init__(self, at):\n        base.call(at.is_integer)\nOwn(time.time())\n",
    "[base.call, len][time.time() < 0](dict)\n",
    "use = [base, time][time.time() == 0]\nuse.call(dict)\n",
    "base.call(getattr({}, 'a' if time.time() == 0 else 'copy'))\n",
    "import uuid\nname = str(uuid.uuid4())\nbase.call(name.upper)\n",
    "with open('/proc/loadavg') as file:\n    LOAD = file.read()\nbase.call(LOAD.upper)\n",
    "NAME = os.urandom(1) and 'a'\nbase.call(NAME.upper)\n",
    "base.kept = {}\nbase.kept[time.time()] = 1\n",
    "for name in sorted([time.time()]):\n    base.call(name.is_integer)\n",
    "setattr(base, 'LEVEL', time.time() > 0)\n",
    "base.call([dict, list][hash('a') % 2])\n",
    "base.call([dict, list][id(base) % 2])\n",
    "base.get([dict, list][time.time_ns() % 2])\n",
    "registry = base.Registry()\nregistry.get([dict, list][time.time_ns() % 2])\n",
    "registry = base.Registry()\nregistry.add([dict, list][time.time_ns() % 2])\n",
    "def use(registry):\n    registry.get([dict, list][time.time_ns() % 2])\nuse(base.Registry())\n",
    "def made():\n    return base.Registry()\nmade().get([dict, list][time.time_ns() % 2])\n",
    "class Own(base.Registry):\n    pass\nOwn().get([dict, list][time.time_ns() % 2])\n",
    "log = base.Registry()\nlog.info([dict, list][time.time_ns() % 2])\n",
    "print(time.time(), file=base.Stream())\n",
)
NOT_PASSED_ON = (
    "import copy\ncopies = [dict]\ncopy.copy(base.call)\nbase.call(copy.deepcopy(copies)[0])\n",
    "START = time.time()\n",
    "START = time.time()\nprint(START)\n",
    "START = time.time()\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'x'))\nsys.path.pop(0)\n",
    "START = time.time()\nbase.call(dict)\n",
    "START = time.time()\ndef made(): return 1\nbase.call(made)\n",
    "START = time.time()\nSTAGE = os.environ.get('STAGE', 'a')\nbase.call(STAGE.upper) if False else None\n",
    "class Own:\n    def __init__(self):\n        self.at = time.time()\nown = Own()\n",
    "names = []\nnames.append(time.time())\n",
    "def elapsed(since):\n    return time.time() - since\nTOOK = elapsed(time.time())\n",
    "log = logging.getLogger(__name__)\nlog.info('started at %s', time.time())\n",
    "LINE = ' '.join([str(time.time())]) + ' '\nPARTS = ((LINE * base.TIMES).split(), ('a ' * base.TIMES).split())\n",
    "import configured\nlogging.info('started at %s', time.time())\n",
    "print(time.time(), file=sys.stderr)\nsys.stderr.write(str(time.time()))\n",
    "def parts(name):\n    return name.split('.')\nPARTS = parts(str(time.time()))\n",
    "def use(settings):\n    return settings.get('a')\nSEEN = use({'a': time.time()})\n",
    "class Own:\n    def add(self, value):\n        self.at = value\nown = Own()\nown.add(time.time())\n",
)


@pytest.mark.parametrize("code", PASSED_ON)
def test_a_value_that_varies_ends_the_sharing_where_a_package_gets_it(starts: Starts, code: str) -> None:
    recording = starts.record(f"{BEGIN}{code}import other\n")
    assert recording.failure == "" and recording.step("base").before == ""
    assert recording.step("other").before.startswith(
        ("what it passes on from one start to another (line ", "base.", "what it does")
    )


def test_a_value_that_varies_is_seen_in_a_module_after_a_subclass(starts: Starts) -> None:
    files = {"own.py": "import time, base\nbase.call([dict, list][time.time_ns() % 2])\nimport other\n"}
    recording = starts.record("import time, base\nclass Own(base.Registry): pass\nimport own\n", files)
    assert recording.failure == ""
    assert recording.step("other").before.startswith("what it passes on from one start to another (line 2 of own.py)")


@pytest.mark.parametrize("code", NOT_PASSED_ON)
def test_a_value_that_varies_is_no_concern_in_own_names(starts: Starts, code: str) -> None:
    recording = starts.record(f"import logging\n{BEGIN}{code}import other\n")
    assert recording.failure == "" and recording.step("other").before == ""


def test_without_a_clock_all_values_are_those_of_each_start(starts: Starts) -> None:
    recording = starts.record(f"{BEGIN}values = [dict]\nbase.call(values[0])\nimport other\n")
    assert recording.failure == "" and recording.step("other").before == ""
