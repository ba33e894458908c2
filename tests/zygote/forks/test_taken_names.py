"""What a module has taken from another one during a watch is the original afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
TAKES = """
import sys, types
sys.path.insert(0, {repository!r})
import {module}
from sockd_zygote.forks import {watch}
taken = sys.modules["taken"] = types.ModuleType("taken")
with {watch}.Watch():
    exec("from {module} import {name} as one; two = one", vars(taken))
    assert taken.one is {module}.{name}
print(taken.one is taken.two is {module}.{name}, taken.one.__qualname__)
"""


@pytest.mark.parametrize(
    ("watch", "module", "name", "qualname"),
    [("fork_hooks", "os", "register_at_fork", "register_at_fork"), ("randomness", "random", "seed", "Random.seed")],
)
def test_a_name_is_the_original_after_the_watch(watch: str, module: str, name: str, qualname: str) -> None:
    program = TAKES.format(repository=str(REPOSITORY), watch=watch, module=module, name=name)
    reported = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert reported.stdout == f"True {qualname}\n"
