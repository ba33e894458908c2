"""What the probe in an image's Python says: here of the Python of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sockd.isolation.roots import python_probe

DEBIANS = """# install the apport exception handler if available
try:
    import apport_python_hook
except ImportError:
    pass
else:
    apport_python_hook.install()
"""
"""/etc/python3.11/sitecustomize.py of Debian 12, and of Ubuntu 24.04."""
HOOK = {"apport_python_hook.py": "def install(): pass\n"}
BROKEN_HOOK = {"apport_python_hook.py": "import sys; sys.hooked = 1\nimport nothing_of_this_name\n"}


def facts(directory: Path, files: dict[str, str]) -> dict[str, Any]:
    """What a Python says that finds these files ahead of others."""
    for name, text in files.items():
        (directory / name).write_text(text)
    program = (
        f"import json\n{Path(python_probe.__file__).read_text().partition('def main')[0]}\nprint(json.dumps(facts([])))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(directory)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    reported: dict[str, Any] = json.loads(answer.stdout)
    return reported


@pytest.mark.parametrize(
    ("text", "more", "is_idle"),
    [
        (DEBIANS, {}, True),
        (f"\n\n# Ours.\n{DEBIANS}", {}, True),
        (DEBIANS, HOOK, False),
        (DEBIANS, BROKEN_HOOK, False),
        (DEBIANS + "x = 1\n", {}, False),
        (DEBIANS.replace("ImportError", "Exception"), {}, False),
        (DEBIANS.replace("pass", "import json"), {}, False),
        ("", {}, False),
    ],
)
def test_a_sitecustomize_is_idle_if_it_is_debians_and_finds_no_hook(
    text: str, more: dict[str, str], is_idle: bool, tmp_path: Path
) -> None:
    reported = facts(tmp_path, {"sitecustomize.py": text, **more})
    assert reported["sitecustomize"] == (str(tmp_path / "sitecustomize.py") if is_idle else "")
    assert reported["customized"] == ([] if is_idle else ["sitecustomize"])


def test_what_counts_is_the_bytecode_that_was_run(tmp_path: Path) -> None:
    """An unchecked .pyc is what the interpreter runs, whatever the source says."""
    source = tmp_path / "sitecustomize.py"
    source.write_text("import sys; sys.flag_of_the_test = 1\n")
    compile_it = (
        "import py_compile, sys; py_compile.compile(sys.argv[1], invalidation_mode=py_compile.PycInvalidationMode(3))"
    )
    subprocess.run([sys.executable, "-I", "-c", compile_it, str(source)], check=True)
    assert facts(tmp_path, {"sitecustomize.py": DEBIANS})["sitecustomize"] == ""


def test_it_says_whether_awss_client_is_there(tmp_path: Path) -> None:
    assert facts(tmp_path, {})["has_client"] is False
    assert facts(tmp_path, {"awslambdaric.py": ""})["has_client"] is True
