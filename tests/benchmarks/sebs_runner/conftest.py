"""A suite of two small benches, laid out as the published one is, and the published one itself where an index has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.sebs_runner.errors import FetchFailed
from benchmarks.sebs_runner.suite import SUITE, Suite, fetch
from tests.support.servers.package_index import wheel

BENCHMARKS = "sebs/benchmarks"
FUNCTION = (
    "from . import storage\nclient = storage.storage.get_instance()\ndef handler(event):\n    return {'result': 1}\n"
)
GENERATE = """\
def buckets_count():
    return (1, 1)
def generate_input(data_dir, size, bucket, inputs, outputs, upload, nosql):
    import os
    for name in sorted(os.listdir(data_dir)):
        upload(0, name, os.path.join(data_dir, name))
    upload(0, 'gone', os.path.join(data_dir, 'gone'))
    where = {'bucket': bucket, 'input': inputs[0], 'output': outputs[0]}
    return {'object': {'key': name, 'size': size}, 'bucket': where}
"""
THUMBNAILER = f"{BENCHMARKS}/200.multimedia/210.thumbnailer"
SLEEP = f"{BENCHMARKS}/000.microbenchmarks/010.sleep"
FILES = {
    f"{THUMBNAILER}/config.json": '{"timeout": 60, "memory": 256}',
    f"{THUMBNAILER}/input.py": GENERATE,
    f"{THUMBNAILER}/python/function.py": FUNCTION,
    f"{THUMBNAILER}/python/init.sh": "exit 1",
    f"{THUMBNAILER}/python/requirements.txt": "# none",
    f"{THUMBNAILER}/python/requirements.txt.3.9": "pillow==9.0.0\n",
    f"{THUMBNAILER}/python/requirements.txt.3.12": "# the newest\npillow==10.3.0\n",
    f"{THUMBNAILER}/python/templates/page.html": "<p>",
    f"{THUMBNAILER}/resources/mark.png": "png",
    f"{SLEEP}/config.json": '{"timeout": 120, "memory": 128}',
    f"{SLEEP}/python/function.py": "def handler(event):\n    return {'result': event['sleep']}\n",
    f"{BENCHMARKS}/wrappers/aws/python/storage.py": "class storage: ...\n",
}


@pytest.fixture
def suite_wheel() -> tuple[str, bytes]:
    """A wheel that could be the suite."""
    return wheel(SUITE.name, SUITE.version, FILES)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """The small suite, installed."""
    import io
    import zipfile

    _, data = wheel(SUITE.name, SUITE.version, FILES)
    root = tmp_path / "suite"
    zipfile.ZipFile(io.BytesIO(data)).extractall(root)
    return Suite(root)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the published suite in it; where $SOCKD_SEBS_CACHE says, or made for this run."""
    chosen = os.environ.get("SOCKD_SEBS_CACHE")
    cache = Path(chosen) if chosen else tmp_path_factory.mktemp("cache")
    try:
        fetch(SUITE, cache)
    except FetchFailed as error:
        pytest.skip(f"no package index can be reached: {error.message[:200]}")
    return cache
