"""The worker's configuration: parsed once from TOML, frozen, handed out in slices.

An unknown key or a value of the wrong type is an error at start that names the key. Every default that AWS Lambda
publishes is AWS's; the others say where they come from.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from sockd.errors import BadConfig

MB = 1 << 20


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the configuration that one owner is given."""


class HttpConfig(Slice, frozen=True):
    """The front: where it listens and what it takes."""

    listen: str = "127.0.0.1:5000"
    max_payload_bytes: int = 6 * MB
    max_connections: int = 4096
    keep_alive_s: int = 75
    drain_s: float = 20.0


class FunctionDefaults(Slice, frozen=True):
    """What a function gets when its own `sockd.toml` is silent (AWS Lambda's defaults where there is one)."""

    memory_mb: int = 128
    timeout_s: float = 3.0
    init_timeout_s: float = 10.0
    concurrency: int = 10
    queue_depth: int = 1000
    pids: int = 1024
    open_files: int = 1024
    cpus: float = 1.0
    tmp_mb: int = 512
    tmp_inodes: int = 65536
    network: Literal["host", "none"] = "host"
    log_bytes: int = 256 * 1024


class SandboxConfig(Slice, frozen=True):
    """Sandboxes: how much of the host they may take, and how they are made ready."""

    memory_mb: int | None = None
    """Memory of the host given to sandboxes and spares, in MB; None is three quarters of it. Zygotes have their own limit."""
    cgroup_pool: int = 16
    favordynmods: Literal["auto", "on", "off"] = "auto"
    roots: Literal["auto", "late", "early"] = "auto"
    """When a sandbox's root is put together; late gives spares and a /proc of one's own (`sandbox/assembly.py`)."""
    pause_after_s: float = 0.05
    idle_limit: int = 2000
    base_uid: int = 0x10000000
    spawn_deadline_s: float = 5.0


class ZygoteConfig(Slice, frozen=True):
    """The Zygote tree: which interpreters are kept ready, and how many children of each."""

    enabled: bool = True
    max_nodes: int = 64
    memory_mb: int = 2048
    policy: Literal["measured", "sock"] = "measured"
    max_depth: int = 4
    max_modules: int = 2000
    import_deadline_s: float = 30.0
    canary_deadline_s: float = 2.0
    spares: int = 4
    """Most ready children of one Zygote; 0 switches spares off."""


class PackageConfig(Slice, frozen=True):
    """The install cache."""

    index_url: str | None = None
    preload: list[str] = []
    resolve_deadline_s: float = 120.0
    install_deadline_s: float = 300.0
    parallel_installs: int = 2
    max_package_mb: int = 1024


class CodeConfig(Slice, frozen=True):
    """What a deployed archive may be (AWS: 50 MB zipped, 250 MB unzipped)."""

    max_zip_bytes: int = 50 * MB
    max_code_bytes: int = 250 * MB
    max_files: int = 20000
    keep_versions: int = 5


class InitscriptsConfig(Slice, frozen=True):
    """The initscript engine: one process for the worker, and the compiler of what is deployed for it."""

    enabled: bool = True
    """False: nothing is prefetched, and a deploy that brings an initscript is refused."""
    memory_mb: int | None = None
    """Memory of the engine, all regions included; None is 256 MB and whatever functions reserve of sandbox.memory_mb."""
    runs: int = 64
    """Most at a time; a cold start beyond is one without an initscript."""
    uid: int | None = None
    """The engine's own; None is the one below sandbox.base_uid, and the compiler's is the one below the engine's."""
    max_module_kb: int = 1024
    compile_deadline_s: float = 60.0
    compile_memory_mb: int = 1024


class TraceConfig(Slice, frozen=True):
    """What is remembered of single invocations, for `sockd trace`."""

    keep: int = 1000
    """How many; 0 remembers none."""


class LambdaApiConfig(Slice, frozen=True):
    """AWS's Lambda API on the public port."""

    enabled: bool = True
    keys: dict[str, str] = {}
    """Access key ids and their secrets; with any, every request of this API must be signed, without, it is Invoke only."""


class Config(Slice, frozen=True):
    """Everything. `Config.load` is the only place that reads a file."""

    state_dir: str = "/var/lib/sockd"
    http: HttpConfig = HttpConfig()
    function: FunctionDefaults = FunctionDefaults()
    sandbox: SandboxConfig = SandboxConfig()
    zygote: ZygoteConfig = ZygoteConfig()
    packages: PackageConfig = PackageConfig()
    code: CodeConfig = CodeConfig()
    initscripts: InitscriptsConfig = InitscriptsConfig()
    traces: TraceConfig = TraceConfig()
    lambda_api: LambdaApiConfig = LambdaApiConfig()

    @classmethod
    def load(cls, path: Path | None, **overrides: str) -> Config:
        """The configuration in a TOML file (none: the defaults) with the command line's overrides.

        Args:
            path: the file, or None.
            overrides: `state_dir` and `listen`, as given to `sockd up`.
        Raises: BadConfig, naming the key and what it should be."""
        try:
            table = tomllib.loads(path.read_text()) if path else {}
            if "state_dir" in overrides:
                table["state_dir"] = overrides["state_dir"]
            if "listen" in overrides:
                table.setdefault("http", {})["listen"] = overrides["listen"]
            return msgspec.convert(table, cls)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise BadConfig(f"{path or 'configuration'}: {error}") from None
