"""A top level that imports by what a service says: no start has what another one has decided."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.starts.test_zygote_tree_of_a_daemon import LOUD, SLOW
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.root

CODE = """
import socket, registry
with socket.create_connection(("127.0.0.1", {port})) as service:
    FLAG = service.recv(1) == b"1"
if FLAG:
    import extension
def f(event): return [FLAG, registry.NAMES]
"""


CHANGES = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as service:
    FLAG = service.recv(1) == b"1"
if not FLAG:
    os.environ["MODE"] = "careful"
import reader
def f(event): return [FLAG, reader.MODE]
"""


class Service(socketserver.ThreadingTCPServer):
    """Says `flag` to each client."""

    flag = b"1"
    daemon_threads = True


class Says(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Service)
        self.request.sendall(self.server.flag)


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(("127.0.0.1", 0), Says) as server:
        running = threading.Thread(target=server.serve_forever)
        running.start()
        yield server
        server.shutdown()
        running.join()


def test_an_import_that_a_service_decides_about_is_each_starts_own(
    daemon: RunningDaemon, index: PackageIndex, service: Service
) -> None:
    index.add(wheel("registry", "1.0", {"registry.py": f"{SLOW}{LOUD}NAMES = []\n"}))
    index.add(
        wheel("extension", "1.0", {"extension.py": f"{SLOW}import registry\nregistry.NAMES.append('extension')\n"})
    )
    files = {"f.py": CODE.format(port=service.server_address[1]), "requirements.txt": "registry\nextension\n"}
    daemon.deploy("decides", files, reuse_sandbox=False)
    assert daemon.call("decides") == [True, ["extension"]]
    daemon.wait_verified()
    learned = daemon.run("decides")
    assert learned.json == [True, ["extension"]]
    assert "importing registry" not in daemon.log_of("decides", learned), "what comes before the decision is shared"
    service.flag = b"0"
    assert [daemon.call("decides") for _ in range(3)] == [[False, []]] * 3


def test_what_another_start_may_do_before_an_import_ends_the_sharing(
    daemon: RunningDaemon, index: PackageIndex, service: Service
) -> None:
    index.add(wheel("reader", "1.0", {"reader.py": f"{SLOW}{LOUD}import os\nMODE = os.environ.get('MODE', 'usual')\n"}))
    files = {"f.py": CHANGES.format(port=service.server_address[1]), "requirements.txt": "reader\n"}
    daemon.deploy("changes", files, reuse_sandbox=False)
    assert daemon.call("changes") == [True, "usual"]
    daemon.wait_verified()
    sharing = daemon.manage("GET", "/functions/changes/imports").json["sharing"]
    assert "by an answer of the network, before it imports " in sharing
    service.flag = b"0"
    assert [daemon.call("changes") for _ in range(3)] == [[False, "careful"]] * 3


def test_what_the_last_start_has_imported_besides_is_named(daemon: RunningDaemon, index: PackageIndex) -> None:
    index.add(wheel("usual", "1.0", {"usual.py": SLOW}))
    index.add(wheel("late", "1.0", {"late.py": SLOW}))
    code = "import usual\ndef f(event):\n    if event:\n        import late\n"
    daemon.deploy("lazy", {"f.py": code, "requirements.txt": "usual\nlate\n"}, reuse_sandbox=False)
    daemon.call("lazy")
    daemon.wait_verified()
    whole = "a Zygote has imported ahead all that its top level imports"
    assert daemon.manage("GET", "/functions/lazy/imports").json["sharing"] == whole
    daemon.call("lazy", 1)
    sharing = daemon.manage("GET", "/functions/lazy/imports").json["sharing"]
    assert sharing.startswith(f"{whole} in the start that was recorded; the last one has imported more of late==1.0")
