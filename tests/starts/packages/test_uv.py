"""Finding uv: from several threads at once, as deploys do."""

from __future__ import annotations

import subprocess
import sys

RACE = """
import sys, threading
from sockd.starts.packages.uv import uv_path
sys.setswitchinterval(1e-6)
found = []
threads = [threading.Thread(target=lambda: found.append(uv_path())) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found))
"""


def test_many_threads_find_it_the_first_time() -> None:
    """In interpreters of their own: what sysconfig knows, it knows for good."""
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=True)
        assert done.stdout == "8\n", done.stderr
