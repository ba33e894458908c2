"""The handler that benches are packed with, in an interpreter of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sebs_runner.packaging import PRELOADED, WRAPPER

STORAGE = """\
class storage:
    instance = None
    @staticmethod
    def get_instance():
        storage.instance = storage.instance or storage()
        return storage.instance
    def download(self, bucket, file, path): return None
    def download_directory(self, bucket, prefix, path):
        for name in 'abc':
            self.download(bucket, name, path)
    def upload(self, bucket, file, path): return file
"""
FUNCTION = """\
import time
from . import storage
client = storage.storage.get_instance()
def handler(event):
    for call, key in event['calls']:
        getattr(client, call)('bucket', key, '/tmp/x')
    if 'fail' in event:
        raise ValueError(event['fail'])
    return {'result': time.monotonic_ns(), 'measurement': {'compute_time': 1}}
"""
MAIN = """\
import json, sys
import handler
class Context: aws_request_id = 'the-id'
print(json.dumps([handler.handler(event, Context) for event in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "function").mkdir()
    (tmp_path / "function" / "function.py").write_text(FUNCTION)
    (tmp_path / "function" / "storage.py").write_text(STORAGE)
    shutil.copyfile(WRAPPER, tmp_path / "handler.py")
    (tmp_path / "main.py").write_text(MAIN)
    return tmp_path


def run(package: Path, *events: dict[str, Any]) -> list[dict[str, Any]]:
    command = [sys.executable, "main.py", json.dumps(events)]
    answers: list[dict[str, Any]] = json.loads(subprocess.run(command, cwd=package, stdout=-1, check=True).stdout)
    return answers


def test_the_answer_has_what_sebs_looks_for(package: Path) -> None:
    (answer,) = run(package, {"calls": []})
    assert answer["request_id"] == "the-id"
    assert answer["is_cold"] is True
    assert set(answer["result"]) == {"output", "measurement"}
    assert float(answer["begin"]) <= float(answer["end"])
    assert len(answer["container_id"]) == 8


def test_only_the_first_answer_is_cold(package: Path) -> None:
    first, second = run(package, {"calls": [["download", "a"]]}, {"calls": [["download", "b"]]})
    assert (first["is_cold"], second["is_cold"]) == (True, False)
    assert first["container_id"] == second["container_id"]
    assert [read["key"] for read in second["sockd"]["reads"]] == ["b"]


def test_initialization_ends_with_the_last_read_before_anything_is_written(package: Path) -> None:
    calls = [["download", "in"], ["download", "model"], ["upload", "out"], ["download", "late"]]
    (answer,) = run(package, {"calls": calls})
    times = answer["sockd"]
    assert [read["key"] for read in times["reads"]] == ["in", "model"]
    assert times["init_done_ns"] == times["reads"][-1]["end_ns"] > times["imported_ns"]


def test_without_reads_it_ends_where_the_function_is_called(package: Path) -> None:
    (answer,) = run(package, {"calls": [["upload", "out"]]})
    times = answer["sockd"]
    assert times["reads"] == []
    assert times["entered_ns"] < times["init_done_ns"] == times["imported_ns"] < answer["result"]["output"]


def test_a_directory_is_one_read(package: Path) -> None:
    (answer,) = run(package, {"calls": [["download_directory", "d"]]})
    assert [(read["call"], read["key"]) for read in answer["sockd"]["reads"]] == [("download_directory", "d")]


def test_a_function_that_raises_is_not_hidden(package: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run(package, {"calls": [], "fail": "no"})


def test_a_preloaded_handler_has_imported_the_function(package: Path) -> None:
    shutil.copyfile(PRELOADED, package / "preloaded.py")
    code = "import sys, preloaded; print(preloaded.handler.__module__, 'function.function' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=package, stdout=-1, check=True, text=True)
    assert done.stdout == "handler True\n"
