"""Imports that a start may leave out: no recording of another start proves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zygote.own_functions.starts import Starts


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    made = Starts(tmp_path)
    for name in ("base", "other", "calls"):
        made.install(name, {f"{name}.py": "def call(function): return function()\n"})
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
)
UNCERTAIN = (
    "import os, sys\nif sys.version_info >= (3, 8) and os.urandom(1):\n    import other\n",
    "import os, sys\nif sys.platform in os.environ.get('ONLY_ON', 'linux'):\n    import other\n",
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
    "def load():\n    import other\nif True:\n    load()\n",
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


def test_code_without_its_text_is_not_certain(starts: Starts) -> None:
    recording = starts.record("exec(compile('import other', '/nowhere.py', 'exec'))\n")
    assert "(line 1 of nowhere.py)" in recording.step("other").before
