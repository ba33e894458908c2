"""What is known of the top levels of versions, and what was learned from making Zygotes; kept for the next daemon.

Owns the recordings (`top_level`), a file for each in `state/recordings`, and `state/learned.json`: refused packages (`refusals`),
imports that failed in a Zygote, and the pairs of Zygotes and versions that were verified. Knows nothing of processes.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from sockd import __version__
from sockd.starts.zygotes.top_levels.refusals import Refusals
from sockd.starts.zygotes.top_levels.top_level import MAX_MODULES, BadRecording, TopLevel, read_steps

FORMAT = 8
"""Format of `learned.json` and of recordings. What another format, worker or Python has left is dropped: it is learned again."""
WORKER = f"{__version__} {sys.version} {FORMAT}"
MAX_RECORDINGS = 4096
"""Files that are kept, those that were written last."""
MAX_KNOWN = 512
"""Recordings in memory that the costs of imports are worked out from."""
MAX_FAILED = 4096
MAX_VERIFIED = 16_384


class SavedNode(msgspec.Struct, frozen=True):
    """A Zygote of an earlier daemon, as far as it takes to make it again."""

    program: str
    """The version whose top level it followed."""
    imports: tuple[str, ...]
    order: tuple[str, ...]
    """The modules that the Zygote was asked to import, after those of its ancestors."""
    rate: float
    """Starts per second that it served."""
    function: str = ""
    """The name of the function that it was made for."""


class Recordings:
    """Every recording by its version's `ImportView.program`."""

    def __init__(self, directory: Path, *, max_modules: int = MAX_MODULES) -> None:
        """Args: directory: of the files, made when it is missing; max_modules: as for `read_steps`."""
        self._directory = directory
        self._max_modules = max_modules
        self._known: OrderedDict[str, TopLevel] = OrderedDict()
        self.failed: OrderedDict[str, str] = OrderedDict()
        """Imports that failed in a Zygote, by id, and the error."""
        self.verified: OrderedDict[str, None] = OrderedDict()
        """Names of pairs that are alike (`verifier.pair_of`)."""
        self.nodes: list[SavedNode] = []
        """The Zygotes that there were when `learned.json` was written, parents before children."""

    def keep(self, program: str, top: TopLevel) -> None:
        """Remember a recording. Raises: OSError, if it cannot be written; it is known all the same."""
        self._know(program, top)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        data = {
            "worker": WORKER,
            "closure": sorted(top.closure),
            "standard_only": top.standard_only,
            "peak_bytes": top.peak_bytes,
            "steps": top.steps,
        }
        publish(self._directory / f"{program}.json", msgspec.json.encode(data))
        self._forget_surplus()

    def find(self, program: str) -> TopLevel | None:
        """The recording of a version, if there is one that this worker can use."""
        known = self._known.get(program)
        if known is None and program:
            known = self._load(self._directory / f"{program}.json")
            if known is not None:
                self._know(program, known)
        return known

    def forget(self, key: str) -> None:
        """A distribution was removed: drop what was recorded with it."""
        for program in [program for program, top in self._known.items() if key in top.closure]:
            del self._known[program]
            (self._directory / f"{program}.json").unlink(missing_ok=True)

    def note_failed(self, import_: str, error: str) -> None:
        """An import that functions do by themselves fails in a Zygote, which is made without it from now on."""
        self.failed[import_] = error
        while len(self.failed) > MAX_FAILED:
            self.failed.popitem(last=False)

    def note_verified(self, pair: str) -> None:
        self.verified[pair] = None
        self.verified.move_to_end(pair)
        while len(self.verified) > MAX_VERIFIED:
            self.verified.popitem(last=False)

    def seconds(self) -> dict[str, float]:
        """Import time of each import: the mean over the recordings that have it."""
        return mean(top.seconds for top in self._known.values())

    def memory_bytes(self) -> dict[str, float]:
        """Memory of each import, likewise (`TopLevel.memory_bytes`)."""
        return mean(top.memory_bytes for top in self._known.values())

    def _know(self, program: str, top: TopLevel) -> None:
        self._known[program] = top
        self._known.move_to_end(program)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _load(self, path: Path) -> TopLevel | None:
        try:
            data = json.loads(path.read_bytes())
            if data["worker"] != WORKER:
                return None
            closure = frozenset(map(text, data["closure"]))
            steps = read_steps(data["steps"], closure, most=self._max_modules)
            return TopLevel(steps, closure, data["standard_only"] is True, msgspec.convert(data["peak_bytes"], int))
        except (OSError, ValueError, KeyError, TypeError, BadRecording):
            return None  # it is recorded again

    def _forget_surplus(self) -> None:
        files = list(os.scandir(self._directory))
        if len(files) > MAX_RECORDINGS:
            oldest = sorted(files, key=lambda entry: entry.stat().st_mtime_ns)
            for entry in oldest[: len(files) - MAX_RECORDINGS * 9 // 10]:
                os.unlink(entry.path)


def mean(values: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean for each name, over the mappings that have it."""
    found: dict[str, list[float]] = {}
    for each in values:
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    return {name: fmean(one) for name, one in found.items()}


def save_learned(path: Path, recordings: Recordings, refused: Refusals) -> None:
    """Publish what was learned by rename: a reader, or the next daemon, sees the old file or the new one. Raises: OSError."""
    data = {
        "format": FORMAT,
        "worker": WORKER,
        "failed": dict(recordings.failed),
        "verified": list(recordings.verified),
        "nodes": msgspec.to_builtins(recordings.nodes),
        "refused": refused.to_json(),
    }
    publish(path, json.dumps(data, separators=(",", ":")).encode())


def load_learned(path: Path, recordings: Recordings) -> tuple[Refusals, str]:
    """Read what an earlier daemon learned.

    Args: path: `state/learned.json`; missing is not an error. recordings: has the imports that failed and the verified pairs
    then. Returns: the refused packages; and why the file could not be read, if so."""
    refused = Refusals()
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT or data["worker"] != WORKER:
            return refused, ""  # another worker's: its packages may behave otherwise here
        failed, verified = read_pairs(data["failed"]), list(map(text, data["verified"]))
        nodes = msgspec.convert(data["nodes"], list[SavedNode])
        refused.update_from_json(data["refused"])
    except FileNotFoundError:
        return refused, ""
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        return Refusals(), f"{path}: starting without what was learned: {type(error).__name__}: {error}"
    for import_, error_text in failed:
        recordings.note_failed(import_, error_text)
    for pair in verified:
        recordings.note_verified(pair)
    recordings.nodes = nodes
    return refused, ""


def read_pairs(data: dict[str, Any]) -> Iterable[tuple[str, str]]:
    return [(text(name), text(value)) for name, value in data.items()]


def publish(path: Path, data: bytes) -> None:
    """Write a file for this user alone, whole or not at all. Raises: OSError."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(draft, "xb", opener=_for_us_alone) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value
