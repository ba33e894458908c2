"""Group K: other users of the host have nothing of the state directory but the socket over which they call functions."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.abuse.clients import as_nobody, client, invoke_as_nobody
from tests.daemon.running import RunningDaemon
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

APP = """
import sockd
@sockd.function(env={"PASSWORD": "hunter2"})
def keeps(pair):
    return pair
if __name__ == "__main__":
    print(keeps.remote((1, 2)))
"""


@case(
    "K3",
    "another user opens every path of the state directory: code, [env], packages, logs, databases, keys",
    expect="none can be read, listed or written; run.sock can be connected to, sockd.sock cannot",
)
def test_other_users_read_nothing(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "app.py").write_text(APP)
    done = client(worker.daemon, tmp_path / "project" / "app.py")
    assert done.stdout == "(1, 2)\n", done.stderr
    package = wheel("shared", "1.0", {"shared.py": "VALUE = 7\n"})
    worker.deploy(
        "uses",
        "import shared\ndef f(event): print('logged'); return shared.VALUE",
        requirements=["shared"],
        wheels=[package],
    )
    assert worker.call("uses") == 7, "an unprivileged sandbox reads code and packages below the closed directories"
    assert worker.invoke("uses", None, x_amz_invocation_type="Event").status == 202
    state = worker.daemon.state
    seen = as_nobody(state)
    happened(f"of {seen['paths']} paths {len(seen['seen'])} are open: {seen['seen']}")
    assert seen["paths"] > 20 and seen["seen"] == {}
    assert seen["run.sock"] and not seen["sockd.sock"]
    assert state.stat().st_mode & 0o777 == 0o711
    reported = {each["name"]: each for each in json.loads(worker.cli("doctor", "--json", check=False).stdout)}
    assert reported["state directory"]["ok"] is True


@case("K3", "another user runs `sockd invoke` with the closed state directory", expect="the function's answer")
def test_another_user_invokes_by_the_command(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("echoes", "def f(event): return event")
    done = invoke_as_nobody(worker.daemon.state, "echoes")
    happened(f"{done.stdout!r}, {done.stderr!r}")
    assert done.stdout.split() == ['"root"', '"nobody"'], done.stderr


@case(
    "K3",
    "a state directory of an older sockd: 0755, packages at its top",
    expect="closed at the next start; functions run",
)
def test_an_older_directory_is_closed(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    state = tmp_path / "state"
    config = f'[packages]\nindex_url = "{worker.index.url}"\n'
    worker.index.add(wheel("older", "1.0", {"older.py": "VALUE = 8\n"}))
    daemon = RunningDaemon.start(state, config)
    try:
        daemon.deploy("uses", {"f.py": "import older\ndef f(event): return older.VALUE", "requirements.txt": "older"})
        assert daemon.call("uses") == 8
    finally:
        daemon.close()
    for name in ("packages", "uv-cache"):
        os.rename(state / "store" / name, state / name)
    for path in (state, *state.iterdir()):
        if not path.is_socket():
            path.chmod(0o755 if path.is_dir() else 0o644)
    before = as_nobody(state)
    assert before["seen"], "this is what an older sockd left"
    daemon = RunningDaemon.start(state, config)
    try:
        assert daemon.call("uses") == 8
        seen = as_nobody(state)
        happened(
            f"{len(before['seen'])} of {before['paths']} paths were open, {len(seen['seen'])} of {seen['paths']} are"
        )
        assert seen["seen"] == {}
    finally:
        daemon.close()
