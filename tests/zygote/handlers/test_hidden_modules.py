"""Modules of the runtime that a Zygote hides, in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
HARNESS = """
import sys
sys.path.insert(0, {repository!r})
from sockd_zygote.handlers import import_hooks
import_hooks.watch_imports()
import sockd_zygote.forks, sockd_zygote.messages
import_hooks.note_loaded()
{code}
"""
CLOCKS = "sockd_zygote.forks.clocks"
PROGRAMS = "sockd_zygote.handlers.programs"
CODE = {
    "a module that was loaded since is not in sys.modules, and comes back as the same": f"""
from sockd_zygote.forks import clocks
import_hooks.hide()
assert {CLOCKS!r} not in sys.modules and not hasattr(sys.modules["sockd_zygote.forks"], "clocks")
import {CLOCKS} as again
assert again is clocks is sys.modules[{CLOCKS!r}] is sys.modules["sockd_zygote.forks"].clocks
""",
    "by its name in its package, too": f"""
from sockd_zygote.forks import clocks as first
import_hooks.hide()
from sockd_zygote.forks import clocks
assert clocks is first and {CLOCKS!r} in sys.modules
""",
    "what each start has stays": """
import_hooks.hide()
assert "sockd_zygote.handlers.import_hooks" in sys.modules
""",
    "what comes with an import of botocore stays": """
from sockd_zygote.handlers import botocore_data, botocore_events, botocore_tls
import_hooks.hide()
assert {f"sockd_zygote.handlers.botocore_{part}" for part in ("data", "events", "tls")} <= sys.modules.keys()
""",
    "a package is hidden with its modules, and comes back before them": f"""
for _ in range(2):
    from sockd_zygote.handlers.programs import http_events as first
    import_hooks.hide()
    package = import_hooks._hidden[{PROGRAMS!r}]
    assert {PROGRAMS!r} not in sys.modules and not hasattr(package, "http_events")
    import {PROGRAMS}.http_events as again
    assert again is first is package.http_events and sys.modules[{PROGRAMS!r}] is package
""",
    "a template hides what no init loads": f"""
from sockd_zygote.forks import clocks
from sockd_zygote.messages import log_layout
import_hooks.hide(import_hooks.OF_ZYGOTES)
assert {CLOCKS!r} not in sys.modules and "sockd_zygote.messages.log_layout" in sys.modules
""",
}


@pytest.mark.parametrize("case", CODE)
def test_hidden_modules(case: str) -> None:
    program = HARNESS.format(repository=str(REPOSITORY), code=CODE[case])
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
