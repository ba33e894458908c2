"""A bench's input: its event, and the objects that the event speaks of.

The event is what the bench's own `input.py` makes of a data directory: the user's SeBS data where it is there, else
stand-ins. `input.py` is a file of the published suite and runs here, in this process, as SeBS runs it.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.sebs_runner.benches import DYNAMODB, Bench
from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.made_inputs import stand_ins
from benchmarks.sebs_runner.suite import Suite

BUCKET = "sockd-sebs"
USERS_DATA = Path("~/.sebs/benchmarks-data")
IMGREC_FILES = {"imgrec": "onnx", "imgrec-wasm": "wasm"}
"""How the names of their models end."""

Item = tuple[str, dict[str, Any]]
"""A table's name and a row for it."""


@dataclass(slots=True)
class Input:
    """What one invocation is given. The same for every repetition, as in SeBS."""

    event: dict[str, Any]
    objects: dict[str, Path] = field(default_factory=dict)
    """Key in BUCKET, and the file that holds it."""
    items: list[Item] = field(default_factory=list)
    """Rows of key-value tables."""
    tables: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Table, and the names of its partition and sort keys."""
    is_stand_in: bool = False

    @property
    def model_variables(self) -> dict[str, str]:
        """Variables from which the init of our own bench knows its model; empty: the event names none."""
        bucket, names = self.event.get("bucket", {}), self.event.get("object", {})
        if "model" not in bucket or "model" not in names:
            return {}
        return {"MODEL_BUCKET": bucket["bucket"], "MODEL_KEY": f"{bucket['model']}/{names['model']}"}

    def bytes_of(self, read: Mapping[str, Any]) -> int:
        """How much a read of the wrapper's brought."""
        if read["call"] != "download_directory":
            return self._size(read["key"])
        return sum(self._size(key) for key in self.objects if key.startswith(read["key"]))

    def _size(self, key: str) -> int:
        return self.objects[key].stat().st_size if key in self.objects else 0


def prepare(bench: Bench, size: str, suite: Suite, *, cache: Path, data: Path | None = None) -> Input:
    """The input of a bench. Makes stand-ins where the user has no data of SeBS's; they are kept in the cache.

    Args:
        data: SeBS's benchmarks-data; None: where SeBS itself puts it.
    Raises: NotPossible, FetchFailed, SuiteMissing, SuiteChanged."""
    directory = users_directory(bench, data)
    is_stand_in = directory is None and bench.id in stand_ins.MAKERS
    if directory is None:
        directory = _stand_in(bench, cache) if is_stand_in else cache
    made = _imgrec(bench, size, directory) if not bench.group else _generate(bench, size, suite, directory)
    made.is_stand_in = is_stand_in
    return made


def users_directory(bench: Bench, data: Path | None) -> Path | None:
    """The bench's part of SeBS's data, or None. Raises: NotPossible when `data` was named and is not there."""
    top = (data or USERS_DATA).expanduser()
    if data is not None and not top.is_dir():
        raise NotPossible(
            f"{data} is not a directory", fix="git clone SeBS's benchmarks-data there, or leave --data out"
        )
    found = (top / bench.group / bench.id, top / bench.id)
    return next((directory for directory in found if bench.group and directory.is_dir()), None)


def _stand_in(bench: Bench, cache: Path) -> Path:
    """The directory of a bench's stand-ins, made if need be and published by rename."""
    final = cache / f"stand-ins-{stand_ins.VERSION}" / bench.id
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=final.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            stand_ins.MAKERS[bench.id](made, cache)
            made.rename(final)
    return final


def _generate(bench: Bench, size: str, suite: Suite, directory: Path) -> Input:
    """What the bench's `input.py` says."""
    module = _module(bench, suite)
    made = Input({})
    buckets: tuple[int, int] = module.buckets_count() if hasattr(module, "buckets_count") else (0, 0)
    inputs = [f"{bench.id}-{number}-input" for number in range(buckets[0])]
    outputs = [f"{bench.id}-{number}-output" for number in range(buckets[1])]
    if DYNAMODB in bench.needs:
        tables = module.allocate_nosql()
        made.tables = {name: (keys["primary_key"], keys["secondary_key"]) for name, keys in tables.items()}

    def upload(prefix: int, key: str, path: str) -> None:
        # 411 also uploads a model for its C++ version, which nothing here reads.
        if Path(path).is_file():
            made.objects[f"{inputs[prefix]}/{key}"] = Path(path)

    def insert(_: str, table: str, row: dict[str, Any], *keys: tuple[str, str]) -> None:
        made.items.append((table, {**row, **dict(keys)}))

    generate: Callable[..., dict[str, Any]] = module.generate_input
    made.event = generate(str(directory), size, BUCKET, inputs, outputs, upload, insert)
    return made


def _module(bench: Bench, suite: Suite) -> ModuleType:
    source = suite.read(*bench.directory, "input.py")
    spec = importlib.util.spec_from_loader(f"sebs_input_{bench.number}", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, f"{bench.id}/input.py", "exec"), module.__dict__)
    return module


def _imgrec(bench: Bench, size: str, directory: Path) -> Input:
    name, picture = ("resnet50", "picture.jpg") if size == "large" else ("small", "small.jpg")
    model = f"{name}.{IMGREC_FILES[bench.id]}"
    objects = {f"imgrec-0-model/{model}": directory / model, f"imgrec-1-input/{picture}": directory / picture}
    where = {"bucket": BUCKET, "input": "imgrec-1-input", "model": "imgrec-0-model"}
    return Input({"object": {"model": model, "input": picture}, "bucket": where}, objects)
