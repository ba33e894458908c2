"""A bench as a directory that can be deployed, in SeBS's own layout.

    handler.py              our wrapper, the same for every bench and arm
    preloaded.py            for a snapshot: the handler whose init imports what the wrapper imports at its first request
    function/               the bench's files, as published; for the arm `own` also SeBS's own storage.py or nosql.py
    requirements.txt        the suite's own, for the Python in use
    sockd.toml              memory, time, concurrency; storage and initscript for the arms that have them
    init.wasm               with an initscript

`function/` has no __init__.py, as SeBS has none. Owns nothing: the directory is the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.sebs_runner.benches import DYNAMODB, FFMPEG, Bench
from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.requirements import Version, requirements
from benchmarks.sebs_runner.suite import Suite
from benchmarks.sebs_runner.torch_source import TorchSource

LEFT_OUT = ("requirements.txt", "init.sh", "package.sh")
"""Files of a bench's directory that are for SeBS's packager, not for the function (names or beginnings of names)."""
OURS = Path(__file__).parent / "imgrec"
NETWORKS = {"imgrec": "onnx_network.py", "imgrec-wasm": "wasm_network.py"}
"""What runs the network of a bench of ours, which imports it as `network`."""
WRAPPER = Path(__file__).with_name("wrapper.py")
PRELOADED = Path(__file__).with_name("preloaded.py")
DEFAULT_CONFIG = {"memory": 128, "timeout": 30}


class Arm(Enum):
    """The owner of the storage code that the function runs."""

    OWN = "own"
    """SeBS's own wrapper for AWS, on boto3."""
    SHIM = "shim"
    """sockd's storage shim."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a package is made for, besides its bench."""

    arm: Arm = Arm.OWN
    initscript: bytes | None = None
    """A compiled initscript."""
    env: Mapping[str, str] = field(default_factory=dict)
    python: Version = (3, 11)
    concurrency: int = 10
    ffmpeg: Path | None = None
    """A static binary, for the benches that call one."""
    torch: TorchSource | None = None
    """For the benches that need it."""
    snapshot: bool = False
    """Whether starts come from a snapshot of the init, which then imports the bench's function."""


def build(bench: Bench, suite: Suite, settings: Settings, directory: Path) -> None:
    """Write a bench's package into a directory that does not exist yet.

    Raises: NotPossible, SuiteMissing, SuiteChanged, OSError."""
    function = directory / "function"
    function.mkdir(parents=True)
    files = _ours(bench) if not bench.group else _published(bench, suite)
    if settings.arm is Arm.OWN:
        files |= _own_wrappers(bench, suite)
    for name, data in files.items():
        (function / name).parent.mkdir(parents=True, exist_ok=True)
        (function / name).write_bytes(data)
    if FFMPEG in bench.needs:
        _put_ffmpeg(settings.ffmpeg, function / "ffmpeg" / "ffmpeg")
    (directory / "handler.py").write_bytes(WRAPPER.read_bytes())
    if settings.snapshot:
        (directory / PRELOADED.name).write_bytes(PRELOADED.read_bytes())
    (directory / "sockd.toml").write_text(_toml(_keys(bench, suite, settings)))
    lines = requirements(bench, suite, settings.python, settings.torch)
    (directory / "requirements.txt").write_text("".join(line + "\n" for line in lines))
    if settings.initscript is not None:
        (directory / "init.wasm").write_bytes(settings.initscript)


def config(bench: Bench, suite: Suite) -> dict[str, Any]:
    """The suite's config.json of a bench; for ours, defaults."""
    if not bench.group:
        return DEFAULT_CONFIG
    parsed: dict[str, Any] = json.loads(suite.read(*bench.directory, "config.json"))
    return parsed


def _published(bench: Bench, suite: Suite) -> dict[str, bytes]:
    """The bench's files, as they lie in `function/`."""
    python = (*bench.directory, "python")
    files = {name: suite.read(*python, name) for name in suite.files(*python) if not name.startswith(LEFT_OUT)}
    for name in suite.files(*bench.directory, "resources"):
        files[f"resources/{name}"] = suite.read(*bench.directory, "resources", name)
    return files


def _ours(bench: Bench) -> dict[str, bytes]:
    files = {"function.py": "function.py", "network.py": NETWORKS[bench.id]}
    return {name: (OURS / file).read_bytes() for name, file in files.items()}


def _own_wrappers(bench: Bench, suite: Suite) -> dict[str, bytes]:
    wrappers = ("benchmarks", "wrappers", "aws", "python")
    files = {}
    if bench.storage:
        files["storage.py"] = suite.read(*wrappers, "storage.py")
    if DYNAMODB in bench.needs:
        files["nosql.py"] = suite.read(*wrappers, "nosql.py")
    return files


def _put_ffmpeg(binary: Path | None, path: Path) -> None:
    if binary is None:
        raise NotPossible("this bench calls an ffmpeg that lies beside it", fix="sockd sebs fetch --ffmpeg")
    path.parent.mkdir()
    path.write_bytes(binary.read_bytes())
    path.chmod(0o755)


def _keys(bench: Bench, suite: Suite, settings: Settings) -> dict[str, Any]:
    published = config(bench, suite)
    keys: dict[str, Any] = {
        "handler": f"{PRELOADED.stem}:handler" if settings.snapshot else "handler:handler",
        "memory_mb": max(bench.memory_mb or 0, published["memory"]),
        "timeout_s": float(max(bench.timeout_s or 0, published["timeout"])),
        "concurrency": settings.concurrency,
    }
    if settings.arm is Arm.SHIM:
        keys["storage"] = "sockd"
    if settings.snapshot:
        keys["snapshot"] = True
    keys["env"] = dict(settings.env)
    if settings.initscript is not None:
        keys["initscript"] = {"wasm": "init.wasm"}
    return keys


def _toml(keys: Mapping[str, Any]) -> str:
    """TOML of numbers, strings and tables of them, which JSON writes alike."""
    plain = {key: value for key, value in keys.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in keys.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"
