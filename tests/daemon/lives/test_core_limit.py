"""A worker that may not raise its hard core limit of 0, as in a container without CAP_SYS_RESOURCE."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.daemon.running import COMMAND, Start
from tests.initscripts.guests import LOOP, module

CAP_SYS_RESOURCE = 24
WITHOUT = "-sys_resource"
CONFINED = ("prlimit", "--core=0:0", "setpriv", f"--bounding-set={WITHOUT}", f"--inh-caps={WITHOUT}", *COMMAND)


@pytest.mark.parametrize("with_initscript", [False, True])
def test_it_starts_and_serves(start: Start, with_initscript: bool) -> None:
    daemon = start(command=CONFINED)
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines())
    assert not int(fields["CapPrm"], 16) >> CAP_SYS_RESOURCE & 1
    assert resource.prlimit(daemon.pid, resource.RLIMIT_CORE) == (0, 0)
    code = "import resource\ndef f(event): return resource.getrlimit(resource.RLIMIT_CORE)\n"
    if with_initscript:
        daemon.deploy_with_initscript("limits", {"f.py": code}, module(LOOP), initscript={"deadline_s": 0.2})
    else:
        daemon.deploy("limits", code)
    assert daemon.call("limits") == [0, 0]
    is_piped = Path("/proc/sys/kernel/core_pattern").read_text().startswith("|")
    assert any("the core limit is 0" in line for line in daemon.lines) is is_piped
