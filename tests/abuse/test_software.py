"""Group A: code, packages and the base can be neither changed nor used to become somebody else."""

from __future__ import annotations

import os
import stat
from typing import Any

from tests.abuse.archives import FILE, raw_zip
from tests.abuse.attack import files
from tests.abuse.prelude import (
    in_child,
    outcome,
    read,
    refusal,
)
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel


@case(
    "A5",
    "write to code, packages, base, /etc, /dev and over their files",
    expect="EROFS; the next instance is as deployed",
)
def test_software_cannot_be_changed(worker: PrivateWorker, happened: Happened) -> None:
    def change(event: Any) -> Any:
        import json as module
        import sys

        import shared  # type: ignore[import-not-found]

        places = ["/", "/var/task", "/packages", os.path.dirname(shared.__file__), "/usr", "/usr/bin", "/usr/lib"]
        places += ["/etc", "/dev", "/opt/sockd", "/opt/sockd/sockd_zygote", "/run", sys.prefix, "/lib", "/var"]
        victims = [
            "/var/task/f.py",
            shared.__file__,
            module.__file__,
            "/opt/sockd/sockd_zygote/handlers/entry.py",
            "/etc/passwd",
        ]
        tried = {f"new in {place}": outcome(os.open, f"{place}/new", os.O_CREAT | os.O_WRONLY) for place in places}
        for file in victims:
            tried[f"write {file}"] = outcome(os.open, file, os.O_RDWR)
            tried[f"unlink {file}"] = outcome(os.unlink, file)
            tried[f"chmod {file}"] = outcome(os.chmod, file, 0o777)
            tried[f"rename {file}"] = outcome(os.rename, file, file + ".old")
            tried[f"truncate {file}"] = outcome(os.truncate, file, 0)
        for link in ("/proc/self/exe", "/proc/1/exe", "/proc/self/root/usr/bin/env", "/proc/self/cwd/f.py"):
            tried[f"write {link}"] = outcome(os.open, link, os.O_RDWR)
        return tried

    package = wheel("shared", "1.0", {"shared.py": "VALUE = 'as installed'\n"})
    worker.deploy("changer", {**files(change)}, requirements=["shared"], wheels=[package], concurrency=1, timeout_s=10)
    tried = worker.call("changer")
    happened(f"{len(tried)} tries: {', '.join(sorted(set(tried.values())))}")
    assert set(tried.values()) <= {"EROFS", "EACCES", "EPERM", "ENOENT", "ETXTBSY"}, tried
    assert sum(answer == "EROFS" for answer in tried.values()) > len(tried) // 2, tried
    code = "import shared\ndef f(event): return [shared.VALUE, open('/var/task/f.py').read()]\n"
    worker.deploy("reader", code, requirements=["shared"])
    assert worker.call("reader") == ["as installed", code]


@case("A12", "setuid programs in code, in a package, in /tmp, in /usr", expect="no other uid, no capability")
def test_a_setuid_program_gives_nothing(worker: PrivateWorker, happened: Happened) -> None:
    def run_them(event: Any) -> Any:
        import glob
        import subprocess

        os.close(os.open("/tmp/status", os.O_CREAT | os.O_WRONLY, 0o755))
        with open("/tmp/status", "w") as file:
            file.write(read("/var/task/status").decode())
        os.chmod("/tmp/status", 0o6755)
        import shutil

        shutil.copy("/bin/cat", "/tmp/cat")
        os.chmod("/tmp/cat", 0o6755)
        seen: dict[str, str] = {}

        def run(command: list[str]) -> None:
            seen[command[0]] = subprocess.run(command, capture_output=True, text=True).stdout

        programs = [
            ["/tmp/cat"],
            ["/tmp/status"],
            ["/var/task/status"],
            *([path] for path in glob.glob("/packages/*/status")),
        ]
        for program in programs:
            command = [*program, "/proc/self/status"]
            done = outcome(run, command)
            if done != "ok":
                seen[command[0]] = done
        return seen, in_child(lambda: [refusal(105, 0), refusal(117, 0, 0, 0), refusal(106, 0), refusal(119, 0, 0, 0)])

    script = b"#!/bin/cat\n"
    code = raw_zip(
        *((name, str(text).encode(), FILE) for name, text in files(run_them).items()),
        ("status", script, stat.S_IFREG | 0o6755),
        ("requirements.txt", b"setuid-root", FILE),
    )
    worker.index.add(
        wheel("setuid-root", "1.0", {"setuid_root.py": "", "status": script}, modes={"status": stat.S_IFREG | 0o6755})
    )
    worker.deploy("setuid", code)
    seen, calls = worker.call("setuid")
    reported = {path: text for path, text in seen.items() if "CapEff" in text}
    assert "/tmp/cat" in reported, seen
    for path, text in reported.items():
        status = {key: value.split() for key, _, value in (line.partition(":") for line in text.splitlines())}
        assert set(status["Uid"]) == {"1000"} and int(status["CapEff"][0], 16) == 0 and status["NoNewPrivs"] == ["1"], (
            path
        )
    bits = [path for path in (worker.daemon.state).rglob("status") if path.stat().st_mode & 0o6000]
    happened(
        f"{len(reported)} programs ran as uid 1000; set*id(0): {', '.join(calls)}; {len(bits)} setuid files on disk"
    )
    assert set(calls) == {"EPERM"}
    assert bits == []
