"""The worker's configuration: parsed once from TOML, frozen, handed out in slices.

An unknown key or a value of the wrong type is an error at start that names the key. Every default that AWS Lambda
publishes is AWS's; the others say where they come from.
"""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from typing import Any, Literal

import msgspec

from sockd.base import toml
from sockd.base.errors import BadConfig
from sockd.base.spelling import unknown_key
from sockd.base.uids import MOST_ZYGOTES

MB = 1 << 20
MOVED = {("sandbox", "favordynmods"): ("latency", "favordynmods"), ("sandbox", "hrtick"): ("latency", "hrtick")}
"""Settings of before, and what they are called now."""
REMOVED = (("sandbox", "idle_poll"),)
"""Settings of before that do nothing now."""
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.(\w+)`)?", re.DOTALL)
"""How msgspec says that there is no such key, in a section or outside."""
_RELEASE = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
"""A version of Linux."""
_log = logging.getLogger(__name__)
OPTIONS: dict[str, tuple[str, ...]] = {
    "state_dir": ("state_dir",),
    "listen": ("http", "listen"),
    "join": ("postgres", "dsn"),
    "name": ("postgres", "worker"),
    "group": ("group", "name"),
}
"""The settings that options of `sockd up` replace, by the options' names."""
BUILD_BOUNDS: dict[str, tuple[float, float]] = {
    "parallel": (1, 64),
    "deadline_s": (1, 86_400),
    "memory_mb": (128, 1 << 20),
    "tmp_mb": (1, 1 << 20),
    "tmp_inodes": (1000, 10_000_000),
    "cpus": (0.01, 256),
    "pids": (16, 32768),
    "open_files": (64, 65536),
    "wheel_mb": (1, 1024),
    "wheel_files": (1, 1_000_000),
}
"""Minimum and maximum of each number in [builds]."""
RunRule = Literal["open", "keys", "off"]
ErrorDetail = Literal["full", "id"]
"""Who may call a function at `/run`: everybody, those with a key (`sockd keys`), no client."""


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the configuration that one owner is given."""


class HttpConfig(Slice, frozen=True):
    """The front: where it listens and what it takes."""

    listen: str = "127.0.0.1:5000"
    """Address and port of the public port; port 0 takes a free one. Beyond loopback it needs `lambda_api.keys`. 127.0.0.1, ::1
    and localhost are all the same: both loopbacks, as far as the host has them; 0.0.0.0 is ::1, too, and :: is 127.0.0.1."""
    max_payload_bytes: int = 6 * MB
    """The most bytes of a request's body, and of an answer."""
    max_streamed_bytes: int = 200 * MB
    """The most bytes of an answer that comes piece by piece (AWS: 200 MB)."""
    stop_grace_s: float = 1.0
    """How long a function whose client has gone in the middle of such an answer may take to end it."""
    max_connections: int = 4096
    """Open at a time; one more is answered 503 and closed."""
    buffer_mb: int | None = None
    """The most memory for bodies, answers and archives of all clients together; None is a tenth of the memory. Each open
    connection may have 64 KB more."""
    stall_s: float = 60.0
    """How long a client may take nothing of an answer that waits for it."""
    run: bool | Literal["keys"] = True
    """Whether /run calls functions: true, false, or "keys": for requests with a key that may invoke (`sockd keys`). AWS's Invoke
    is as open, but for signed requests; function URLs are not closed. A function's own `run` can only be stricter."""
    errors: ErrorDetail | None = None
    """What /run tells of an exception of a function: type, message and stack with source lines (full), or the request's id alone;
    None: full where the port is on loopback, else the id. Logs have all of it, and so have callers with a key that may read
    (`sockd keys`), callers of run.sock who may manage, and the deployer. A function's own `errors` counts instead."""
    status: bool | Literal["keys"] = True
    """Whether /status is on this port; "keys": for a key that may read. It is on the management socket anyhow."""
    metrics: bool | Literal["keys"] = True
    """Whether /metrics is on this port; "keys": for a key that may read."""
    cross_site: bool = False
    """Whether pages of other sites may have a browser invoke functions of a worker that listens on loopback."""
    keep_alive_s: int = 75
    """How long an idle connection is kept."""
    drain_s: float = 20.0
    """How long SIGTERM waits for what is under way."""
    replay_s: float = 300.0
    """How long an answer is kept for a request that comes again under its Idempotency-Key, or its SDK's id."""
    replay_bytes: int = 64 * MB
    """The most bytes of all answers that are kept; beyond, the oldest go."""
    replay_answers: int = 10_000
    """How many are kept."""


class FunctionDefaults(Slice, frozen=True):
    """What a function gets when its own `sockd.toml` is silent (AWS Lambda's defaults where there is one)."""

    memory_mb: int = 128
    """The memory of one sandbox, in MB, with swap off."""
    timeout_s: float = 3.0
    """The time of one request, in seconds. Left at 3, it is 30 for f.py, for code with an ol.yaml and for
    `@sockd.function`."""
    init_timeout_s: float = 10.0
    """The time to import the handler, in seconds, without the time for which it waits for processors that others use
    (`sandbox.init_ceiling`)."""
    concurrency: int = 10
    """Sandboxes that serve at once."""
    queue_depth: int = 1000
    """Requests that wait for one of them; beyond, 429."""
    pids: int = 1024
    """Processes and threads of a sandbox."""
    open_files: int = 1024
    """Descriptors of one process."""
    sockets: int = 1024
    """IP sockets that a sandbox has open; beyond, EMFILE. All sandboxes of a function: `sandbox.function_sockets`."""
    cpus: float = 1.0
    """CPU seconds per second."""
    tmp_mb: int = 512
    """Size of /tmp, in MB; what is in it counts as memory."""
    tmp_inodes: int = 65536
    """Files in /tmp."""
    network: Literal["host", "none", "private"] = "host"
    """The host's network, none at all, or one of its own, from which it reaches what `egress` says."""
    egress: list[str] | None = None
    """With `network = "private"`: what may be reached, as networks, addresses, names or `internet`, each with ports or without
    (docs/guide/networks.md). None: the internet without private ranges; an empty list: nothing."""
    log_bytes: int = 256 * 1024
    """Kept of what one request prints."""
    log_format: Literal["text", "json"] = "text"
    """How the `logging` of a function and its failures are logged: AWS's lines with tabs, or AWS's objects of JSON."""
    log_level: Literal["trace", "debug", "info", "warn", "error", "fatal"] | None = None
    """With `log_format = "json"`: of the function's root logger; None is info."""
    system_log_level: Literal["debug", "info", "warn"] | None = None
    """With `log_format = "json"`: of the platform's own events in AWS's LogResult; None is info."""


class SandboxConfig(Slice, frozen=True):
    """Sandboxes: how much of the host they may take, and how they are made ready."""

    memory_mb: int | None = None
    """Memory of the host given to sandboxes and spares, in MB; None is three quarters of it, of which a worker of a group gives
    `group.cache_node_memory_mb` to its cache node. Zygotes have their own limit."""
    cgroup_pool: int = 16
    """Cgroups made ahead."""
    sockets: int | None = None
    """IP sockets that all sandboxes have open together; None is half as many as the host has ephemeral ports."""
    function_sockets: int | None = None
    """The IP sockets that all sandboxes of one function may have together; None is half of `sockets`."""
    pids: int | None = None
    """Processes and threads that everything in sockd's cgroups may have together; None is half of what the host may have
    (kernel.pid_max, kernel.threads-max, the cgroup of the worker)."""
    function_pids: int | None = None
    """The processes that all sandboxes of one function may have together; None is half of `pids`. The more sandboxes of a
    function there are, the fewer each may have, and at least 64."""
    roots: Literal["auto", "detached", "attached"] = "auto"
    """How a sandbox's root is made: in no mount table (Linux 6.15), or in a mount namespace of its own (any kernel)."""
    kernel: str | None = None
    """Use nothing that a newer Linux than this one has brought ("6.1"), as if the host had that one; None: all that it has. For
    tests, and to leave out what a kernel has but does wrong."""
    pause_after_s: float = 0.05
    """An idle sandbox is frozen after this."""
    idle_limit: int = 2000
    """Most idle sandboxes, frozen ones included."""
    pythons: tuple[str, ...] = ()
    """Paths of Python interpreters for functions with `python`, besides those in the usual places."""
    base_uid: int = 0x10000000
    """The first of the uids that sandboxes and Zygotes get; no other program may use those from it on."""
    spawn_deadline_s: float = 5.0
    """How long a Zygote may take to fork."""
    init_ceiling: float = 6.0
    """Maximum wall-clock time of an init, as a multiple of the function's `init_timeout_s`, at least 1. Time that a sandbox waits
    for a processor which others use does not count against `init_timeout_s`, up to this ceiling; with 1 it does."""

    start_wait_s: float = 30.0
    """How long a request waits, in addition to the function's `init_timeout_s`, while as many sandboxes of its function start as
    the processors have work for; beyond, 503."""

    def __post_init__(self) -> None:
        if not self.start_wait_s >= 0:
            raise ValueError(f"sandbox.start_wait_s = {self.start_wait_s:g}: must not be negative")
        if not self.init_ceiling >= 1:
            raise ValueError(f"sandbox.init_ceiling = {self.init_ceiling:g}: must be at least 1")
        if self.kernel is not None and not _RELEASE.fullmatch(self.kernel):
            raise ValueError(f'sandbox.kernel = "{self.kernel}": must be two numbers, such as "6.1"')

    @property
    def kernel_release(self) -> tuple[int, int] | None:
        """`kernel` as numbers."""
        if self.kernel is None:
            return None
        major, minor = self.kernel.split(".")
        return int(major), int(minor)


class NetworkConfig(Slice, frozen=True):
    """Networks of functions (`network = "private"`), and what those with the host's network may not reach."""

    private: bool = True
    """Whether functions may have a private network, where the kernel has what it takes."""
    ip_forward: bool = False
    """Whether the worker switches net.ipv4.ip_forward on, and leaves it on; false: it asks for that to be done."""
    range: str = "100.64.0.0/10"
    """Addresses of endpoints, at least 4096 unicast ones. They are seen by functions alone: the host sends everything on
    under its own."""
    uplink: str = "198.18.0.0/15"
    """Where the worker takes the two addresses from that its link to the host has; the host has no route for them otherwise."""
    pool: int = 128
    """Most endpoints that are ready for one Zygote's functions, 0.3 MB each; how many are is decided by the last minute."""
    least_pool: int = 2
    """How many endpoints are always ready for one Zygote's functions; at most `pool`."""
    idle_pools: int = 256
    """Endpoints that are ready for all Zygotes together while no function starts, in equal parts, of which none is above `pool`:
    77 MB of `sandbox.memory_mb`, made from 0.05 s after the last start on at some 1 ms each. A function that needs the memory
    gets it. 0: as many as `least_pool` and the last minute say."""
    nameservers: tuple[str, ...] = ()
    """Who is asked for the names in `egress`: addresses of IPv4 or IPv6, without a port; empty: those of the host's
    resolv.conf."""
    max_rules: int = 64
    """Most `egress` rules of a function, 1 to 4096."""
    connections: int = 4096
    """Open connections of one sandbox."""
    new_connections: int = 4096
    """New connections of one sandbox at once, and as many again every two minutes: for so long the host remembers each."""
    all_connections: int | None = None
    """Open connections of all sandboxes together; None is so many that half of the host's table of tracked connections
    (net.netfilter.nf_conntrack_max) stays free, ended ones included."""
    function_connections: int | None = None
    """The connections that all sandboxes of one function may have together; None is half of `all_connections`. The more
    sandboxes there are, the fewer each may have (`connections`, and new ones in proportion), and at least 64, if
    `connections` is not less."""
    host_ports: tuple[int, ...] = ()
    """Ports of TCP on the host's loopback that functions with a private network may name in `egress` (host:PORT). Empty: none."""
    publish_on: tuple[str, ...] = ()
    """Addresses of this host, besides loopback, at which services may publish their port (`service.publish_on`), such as
    10.0.0.5; 0.0.0.0 and ::, which are all of them, are two of their own. Clients that reach the address reach the service."""
    queries: int = 1024
    """DNS queries of one sandbox per second; more are dropped. The default is AWS's."""
    denied: tuple[str, ...] = ("100.100.100.200", "168.63.129.16", "192.0.0.192")
    """Networks that no private network and no initscript reaches, whatever `egress` says, besides link-local ones: metadata
    services of clouds."""
    host_deny: tuple[str, ...] = (
        *("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128"),
        *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    )
    """Networks that functions with the host's network do not reach: link-local ones and the clouds' metadata services. DNS of the
    nameservers in the host's resolv.conf and in `nameservers` stays allowed."""


class LatencyConfig(Slice, frozen=True):
    """Optimizations with effects other than speed, each with a switch (docs/performance.md)."""

    favordynmods: Literal["auto", "on", "off"] = "auto"
    """Cheap moves of processes between cgroups, machine-wide until reboot; auto: where they are needed."""
    hrtick: Literal["auto", "on", "off"] = "auto"
    """A tick of 0.5 ms while functions compute and others are called; auto: where the kernel's own is longer."""
    garbage: Literal["auto", "off"] = "auto"
    """Garbage of the daemon is collected while few requests run; off: by Python's own rule."""


class ZygoteConfig(Slice, frozen=True):
    """The Zygote tree: which interpreters are kept ready, and how many children of each."""

    enabled: bool = True
    """False: every sandbox is forked from the bare root Zygote."""
    max_nodes: int = 64
    """Most Zygotes, at most 96: each has a block of uids, and a root has 128 for its children."""
    memory_mb: int = 2048
    """The memory of all Zygotes together, in MB."""
    policy: Literal["measured", "sock"] = "measured"
    """Who is evicted: by what was measured, or SOCK's published heuristic."""
    max_depth: int = 4
    """The most levels of the tree, below the root."""
    max_modules: int = 5000
    """Most modules that the top level of a function may load; of one that loads more, nothing is imported ahead."""
    learners: int = 2
    """How many Zygotes are made at a time. With 2 or more, one of them is left for Zygotes that have not failed."""
    import_deadline_s: float = 30.0
    """How long a Zygote may import."""
    rebuild_s: float = 10.0
    """How long a worker's start may take to make the Zygotes that an earlier worker had, and the snapshots that were used in the
    last day, before the port opens; the others are made afterwards. 0: none is waited for."""
    canary_deadline_s: float = 10.0
    """How long the first fork of a new Zygote may take to be ready, and then to try what functions do."""
    spares: int = 4
    """Most ready children of one Zygote; 0 switches spares off."""
    least_spares: int = 1
    """How many spares each Zygote keeps, however rare starts from it are, 1 to 2 MB each; given up while memory is short."""
    verify: bool = True
    """Whether a fork of a Zygote is compared with a start of the function's own before it serves a version. False: what the top
    level was recorded to do and what the imports looked at decide alone."""
    verifiers: int = 1
    """Recordings and verifications at a time."""
    verify_deadline_s: float = 120.0
    """How long each sandbox of a recording or verification may take, with half the CPU weight of a function and without the time
    for which it waits for processors that others use (`sandbox.init_ceiling`); beyond, it is tried again later."""
    verify_memory_mb: int = 1024
    """Memory of each of these sandboxes, at most a quarter of what is free; where that is less than 128 MB, they wait."""
    verify_again_after: int = 1000
    """Cold starts from Zygotes with packages after which one that serves is verified again; 0: never."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_nodes <= MOST_ZYGOTES:
            raise ValueError(f"zygote.max_nodes = {self.max_nodes}: must be between 1 and {MOST_ZYGOTES}")


class PackageConfig(Slice, frozen=True):
    """The install cache."""

    index_url: str | None = None
    """The package index; None is uv's default. Credentials are in this URL, or in the netrc of the worker's user."""
    extra_index_urls: tuple[str, ...] = ()
    """Indexes that are searched before it, for all functions; the first that has a package is the only one it is taken from."""
    indexes: dict[str, str] = {}
    """Indexes that functions may choose in their `sockd.toml`, by name (`packages.index`, `packages.extra_index`)."""
    default: tuple[str, ...] = ("boto3",)
    """Packages that functions may import without naming them, as on AWS: resolved once, and added to a function whose code or
    packages mention them. Empty: none."""
    preload: list[str] = []
    """Packages that are installed at start."""
    resolve_deadline_s: float = 120.0
    """For resolving a requirements.txt."""
    install_deadline_s: float = 300.0
    """For installing one distribution."""
    parallel_installs: int = 2
    """Distributions installed at a time."""
    restore_wait_s: float = 30.0
    """How long a call waits while packages or the image of its function, which were lost, are fetched again; beyond, 503."""
    max_package_mb: int = 1024
    """Most that one distribution may take on the disk."""


class BuildConfig(Slice, frozen=True):
    """Builds of packages from source, for deploys that allow them; each build runs in a sandbox with these limits."""

    enabled: bool = True
    """False: the worker builds nothing."""
    parallel: int = 1
    """Maximum number of concurrent builds."""
    deadline_s: float = 600.0
    """Maximum duration of a build in seconds, with the download of its source and build requirements."""
    memory_mb: int = 2048
    """Memory limit of a build in MB, /tmp included; at most sandbox.memory_mb."""
    tmp_mb: int = 1536
    """Size of /tmp in MB. A build can write nowhere else."""
    tmp_inodes: int = 200_000
    """Maximum number of files in /tmp."""
    cpus: float = 1.0
    """CPU limit. A build has the minimum CPU weight: functions come first."""
    pids: int = 256
    """Maximum number of processes and threads."""
    open_files: int = 1024
    """Maximum number of open descriptors of one process."""
    network: Literal["host", "none"] = "host"
    """With none, a build reaches neither a package index nor a source."""
    reach_host: bool = False
    """Whether a build may connect to addresses of this host, loopback included. Package indexes, proxies and nameservers on this
    host are always reachable."""
    wheel_mb: int = 256
    """Maximum size of a built wheel in MB, compressed; packages.max_package_mb limits the size of its files."""
    wheel_files: int = 20_000
    """Maximum number of files in a built wheel."""

    def __post_init__(self) -> None:
        for key, (least, most) in BUILD_BOUNDS.items():
            if not least <= getattr(self, key) <= most:
                raise ValueError(f"builds.{key} = {getattr(self, key)}: must be between {least:g} and {most:g}")


class CodeConfig(Slice, frozen=True):
    """What a deployed archive may be (AWS: 50 MB zipped, 250 MB unzipped)."""

    max_zip_bytes: int = 50 * MB
    """The most bytes of an archive as it is uploaded."""
    max_code_bytes: int = 250 * MB
    """The most bytes of the files in an archive."""
    max_files: int = 20000
    """In it."""
    keep_versions: int = 5
    """Deploys of each function that are remembered, besides those that were published."""
    max_published: int = 1000
    """Published versions of one function, and its aliases: each at most so many."""
    live_versions: int = 64
    """Published versions of all functions that stay live, with sandboxes of their own, when they are not used."""


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
    """The size of a WebAssembly module, in KB."""
    compile_deadline_s: float = 60.0
    """For compiling one."""
    compile_memory_mb: int = 1024
    """The memory of the compiler, in MB."""
    denied: tuple[str, ...] = (
        *("169.254.169.254", "169.254.170.2", "fd00:ec2::254", "fd00:ec2::23"),
        *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"),
        *("metadata.azure.internal", "metadata.azure.com", "metadata.tencentyun.com"),
    )
    """Where no initscript connects to, whatever its function allows, as in `initscript.endpoints`: by default the metadata
    services of clouds. Link-local addresses are always denied, and so is what carries a denied address of IPv4 in one of IPv6."""


class WasmConfig(Slice, frozen=True):
    """Functions that are WebAssembly (`runtime = "wasm"`), compiled by their deploys with the compiler of initscripts."""

    max_module_mb: int = 64
    """The size of a module or component, in MB."""
    max_compiled_mb: int = 256
    """The size of its compiled file, in MB."""
    compile_deadline_s: float = 300.0
    """For compiling one."""
    compile_memory_mb: int = 2048
    """The memory of the compiler, in MB."""


MOST_PROFILE_MB = 128
"""An object of the chunk store holds a profile."""
IMAGE_BOUNDS: dict[str, tuple[float, float]] = {
    "max_image_mb": (1, 1 << 20),
    "max_files": (1, 100_000_000),
    "max_layers": (1, 10_000),
    "import_timeout_s": (1, 86_400),
    "compile_timeout_s": (0, 86_400),
    "gc_grace_s": (0, 3_153_600_000),
    "store_attempt_s": (0.1, 3600),
    "stall_s": (0.1, 3600),
    "agent_answer_s": (0.1, 3600),
    "cache_mb": (0, 1 << 26),
    "fill_mb_s": (0, 1 << 20),
    "profile_mb": (0, MOST_PROFILE_MB),
    "startup_mb": (0, 1 << 20),
    "cold_starts": (1, 10_000),
}
LEAST_CACHE_MB = 16
"""A cache of fewer chunks is none."""
_ENDPOINT = re.compile(r"https?://[^\s/?#@]+/?")
_REGISTRY = re.compile(r"(?:[^\s/?#@:]+|\[?[0-9A-Fa-f:.]+\]?)(?::[0-9]{1,5})?")
_MIRROR = re.compile(rf"(?:{_REGISTRY.pattern})(?:/[a-z0-9._-]+)*")


class ImagesConfig(Slice, frozen=True):
    """Container images: where they come from, and what one may cost."""

    max_image_mb: int = 10240
    """The most MB of an image's files (AWS: 10 GB), and of an archive that is uploaded."""
    max_files: int = 500_000
    """The most files of an image."""
    max_layers: int = 127
    """The most layers of an image."""
    import_timeout_s: float = 900.0
    """For one import: fetching an image's layers and writing its file system."""
    compile_timeout_s: float = 120.0
    """For the image's own Python to compile sources that have no bytecode, once for each image; 0: nothing is compiled."""
    docker_config: str | None = None
    """A file with credentials for registries, as `docker login` writes it: its absolute path; None: ~/.docker/config.json of the
    worker's user, if it is there."""
    ca_file: str | None = None
    """A file with certificates (PEM) of authorities that registries are trusted by, besides the system's: its absolute path."""
    mirrors: dict[str, str] = {}
    """Registries that are asked first for others' images: with "docker.io" = "mirror.internal:5000/hub", for hub/library/python.
    What a mirror does not have, or while it does not answer, comes from the registry that the reference names."""
    insecure_registries: tuple[str, ...] = ()
    """Registries that are reached without TLS: HOST or HOST:PORT. Those on loopback may be in any case."""
    redirect_hosts: tuple[str, ...] = ()
    """Token servers and storage on loopback, in private networks or on this host to which registries may send an import: HOST or
    HOST:PORT. Public addresses may be in any case, over HTTPS, and so may the registry itself."""
    store: str | None = None
    """Where chunks of images are kept: s3://BUCKET/PREFIX, or a directory that is there; None: `chunks` in the state directory.
    Workers may share a store."""
    endpoint: str = ""
    """The address of an S3 store that is not AWS's: http:// or https:// and a host."""
    region: str = "us-east-1"
    """The region of an S3 store."""
    credentials_file: str | None = None
    """With the keys of an S3 store, in the format of ~/.aws/credentials, readable by its owner alone; None: those in the worker's
    environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)."""
    key_file: str | None = None
    """With the key of this worker's images, 32 random bytes; workers that share a store have the same. None: images.key in the
    state directory."""
    worker: str | None = None
    """This worker's name among those that share a store; None: its host's name and an id of the state directory."""
    tenant: str = "default"
    """The tenant that owns the images: manifests are sealed for a tenant."""
    zone: str = ""
    """Chunks are shared within a zone only."""
    salt_per_tenant: bool = False
    """Whether chunks are shared within the tenant only, so that no tenant can find out what others have stored."""
    salt_epoch: int = 0
    """A new number ends the sharing of chunks with earlier uploads."""
    gc_grace_s: float | None = None
    """How long what is not used is kept in the store before it is deleted; None: two minutes in a directory, a day in S3."""
    store_attempt_s: float = 10.0
    """How long one attempt of a request to an S3 store may take; there are three."""
    stall_s: float = 2.5
    """How long a start, and a read of an image, wait for a chunk store that sends nothing; they then fail with
    `Images.StoreUnavailable`. A store that sends slowly is waited for."""
    agent_answer_s: float = 5.0
    """How long the process that serves images may take to answer the worker; it is then killed, and another one takes over."""
    cache_mb: int = 2048
    """The MB of chunks on this worker's disk, at least 16; 0 for no such cache."""
    nodes: tuple[str, ...] = ()
    """Cache nodes (`sockd cache-node`), as ADDRESS:PORT; five or more survive the loss of one. The same list on each worker."""
    nodes_token_file: str | None = None
    """A file whose first line is the token that the cache nodes require (`sockd cache-node --token-file`)."""
    on_demand: bool = True
    """Whether images are read as they are needed, where the host has FUSE; false: written whole before their first start."""
    fill_mb_s: int = 0
    """How much of an image that is in use is fetched in the background, in MB per second; 0: nothing."""
    ready: bool | None = None
    """Whether what imports and serves images is started before it is needed (about 80 MB of memory); None: with the worker if
    `store` is set or there are images, otherwise with the first image."""
    profile_mb: int = 64
    """The MB that are kept of what an image's first start reads, at most 128: stored in the chunk store, and fetched at once
    for the next starts on other workers. 0 keeps only which chunks it reads, also if another worker has stored more."""
    startup_mb: int = 512
    """The MB of memory for what images read while they start, of all images at a time (each for a minute, at most
    `profile_mb`); a start beyond fetches chunks."""
    cold_starts: int = 8
    """Starts in images that no sandbox uses at the time, at once; one more waits, for 5 seconds at most, and is then answered
    429, to be tried again."""

    def __post_init__(self) -> None:
        for key, (least, most) in IMAGE_BOUNDS.items():
            value = getattr(self, key)
            if value is not None and not least <= value <= most:
                raise ValueError(f"images.{key} = {value}: must be between {least:.12g} and {most:.12g}")
        if 0 < self.cache_mb < LEAST_CACHE_MB:
            raise ValueError(
                f"images.cache_mb = {self.cache_mb}: must be 0, which is no cache, or at least {LEAST_CACHE_MB}"
            )
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
            raise ValueError(
                f"images.endpoint = {self.endpoint[:200]!r}: must be http://HOST[:PORT] or https://HOST[:PORT]"
            )
        for host, mirror in self.mirrors.items():
            if not _REGISTRY.fullmatch(host) or not _MIRROR.fullmatch(mirror):
                raise ValueError(
                    f"images.mirrors: {host[:200]!r} = {mirror[:200]!r} must be a registry and its mirror, HOST[:PORT][/PATH]"
                )
        for key in ("insecure_registries", "redirect_hosts"):
            for host in getattr(self, key):
                if not _REGISTRY.fullmatch(host):
                    raise ValueError(
                        f"images.{key}: {host[:200]!r} must be HOST or HOST:PORT, such as registry.internal:5000"
                    )


class TraceConfig(Slice, frozen=True):
    """What is remembered of single invocations, for `sockd trace`."""

    keep: int = 1000
    """How many; 0 remembers none."""
    keep_each: int = 250
    """Failures, cold starts and slow invocations that are remembered besides: so many of each. When there are more, the function
    that has most of them loses its oldest one."""
    slow_ms: int = 1000
    """From how long on an invocation is a slow one."""


class LogConfig(Slice, frozen=True):
    """What functions have printed: so much of it is kept."""

    memory_mb: int = 64
    """The MB of logs of all functions together, in memory; of one function, 1000 records and 1 MB."""
    keep_mb: int = 64
    """On disk, in the state directory, over restarts; 0 keeps none there. When there is more, or more than the disk has left,
    functions that keep more than an equal share lose their oldest records."""


class OtlpConfig(Slice, frozen=True):
    """Spans for an OpenTelemetry collector, by OTLP over HTTP; needs the extra `otel`.

    The variables OTEL_EXPORTER_OTLP_* of `sockd up` count as well; what is set here wins."""

    endpoint: str = ""
    """The collector's address, such as http://localhost:4318; empty and no variable: nothing is exported."""
    sample: float = 1.0
    """Share of the traces that begin here and are recorded, 0 to 1; of a caller's trace the caller has decided."""
    queue: int = 2048
    """Most invocations that wait for being exported; what is over it is lost, and counted."""
    flush_s: float = 5.0
    """How long a drain waits for the last ones."""


class EventsConfig(Slice, frozen=True):
    """Asynchronous invocation (AWS's numbers where it has one) and schedules."""

    concurrency: int = 64
    """Events that run at a time, of all functions; of one function, no more than its own concurrency."""
    max_payload_bytes: int = 1 * MB
    """The most bytes of one event."""
    max_events: int = 100_000
    """That wait or run; beyond, callers get 429."""
    max_bytes: int = 512 * MB
    """The most bytes of the payloads of waiting events; beyond, callers get 429."""
    function_share: float = 0.5
    """How much of both one function may take: what waits for one does not keep those of others out."""
    max_dead: int = 100_000
    """Dead letters that are kept; beyond, the oldest go."""
    max_dead_bytes: int = 512 * MB
    """The most bytes of the payloads of dead letters; beyond, the oldest go."""
    retries: int = 2
    """After errors of a function, unless its event-invoke-config says otherwise."""
    retry_delays_s: tuple[float, ...] = (60.0, 120.0)
    """Before the first retry and the second; the last one holds for all that follow."""
    max_deaths: int = 3
    """An event during which so many daemons have died, SIGKILL included, is a dead letter (WorkerDied)."""
    death_delay_s: float = 10.0
    """Before a function runs its next event, one at a time, when a daemon has died while it ran some; it doubles each time."""
    max_death_delay_s: float = 3600.0
    """The longest that it becomes; a function during whose events no daemon died for twice as long begins anew."""
    max_age_s: int = 6 * 3600
    """How long an event is tried, unless its function's event-invoke-config says otherwise."""
    throttle_delay_s: float = 1.0
    """Before an event that found no place is tried again; it doubles each time."""
    max_throttle_delay_s: float = 300.0
    """The longest that it becomes."""
    remember_s: float = 300.0
    """How long the id of an SDK's call is known, so that a retry of it is not a second event."""
    max_remembered: int = 100_000
    """Most of those ids."""
    synchronous: Literal["normal", "full"] = "normal"
    """normal: what was accepted survives the daemon's death, a power cut may take the last moments; full: survives both."""
    directories: dict[str, str] = {}
    """Directories of the host that events may end at as `directory:NAME`; another name is one in the state directory."""
    max_schedules: int = 1000
    """Most schedules."""
    missed: Literal["once", "skip"] = "once"
    """What becomes of the ticks that a schedule missed while the daemon was down: one is made up for, or none."""


class PostgresConfig(Slice, frozen=True):
    """PostgreSQL in place of the SQLite file of events (docs/guide/postgres.md); needs `sockd[postgres]`."""

    dsn: str = ""
    """postgresql://USER@HOST:PORT/DATABASE, a database of sockd's own; empty: none. A password is read from ?passfile=FILE."""
    worker: str = ""
    """The name that this worker's events have; each worker on the database needs one of its own, and keeps it over restarts.
    Empty: main, in a group the host's name."""
    connections: int = 8
    """The most connections."""
    timeout_s: float = 5.0
    """How long a statement waits for an answer; after that, callers get 503."""


GROUP_BOUNDS: dict[str, tuple[float, float]] = {
    "heartbeat_s": (0.1, 60),
    "silent_s": (0.5, 600),
    "drain_notice_s": (0, 60),
    "cache_node_memory_mb": (0, 1 << 20),
    "cache_node_port": (0, 65535),
}
"""Minimum and maximum of each number in [group]."""
BEATS_OF_SILENCE = 3
"""The least number of heartbeats in `group.silent_s`: one that is late is no death."""
_WORKER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class GroupConfig(Slice, frozen=True):
    """Several workers with the same functions, on one PostgreSQL database (docs/guide/group.md); needs `postgres.dsn`,
    `images.store` and `images.key_file`."""

    name: str = ""
    """The group that this worker joins; empty: none, and it keeps its functions. All workers on a database are of one group."""
    address: str = ""
    """Address and port at which a proxy in front reaches this worker; empty: where the public port listens."""
    heartbeat_s: float = 3.0
    """How often the worker reports to its group, and reads what the others have changed."""
    silent_s: float = 15.0
    """How long a worker may report nothing until the others take over its events; three heartbeats at least."""
    drain_notice_s: float = 2.0
    """How long a worker that is stopped still serves, while /healthz answers 503 to have a proxy send its requests elsewhere."""
    cache_node_memory_mb: int = 256
    """The MB of chunks of images that this worker keeps in memory for all of the group, encrypted, in a process of its own; 0: it
    keeps none. Without effect where `images.nodes` names cache nodes. Functions have so much less, unless `sandbox.memory_mb` is
    set."""
    cache_node_port: int = 0
    """The port at which the other workers reach that process, at the address where they reach this worker; 0: any."""

    def __post_init__(self) -> None:
        for key, (least, most) in GROUP_BOUNDS.items():
            if not least <= getattr(self, key) <= most:
                raise ValueError(f"group.{key} = {getattr(self, key)}: must be between {least:g} and {most:g}")
        if self.silent_s < BEATS_OF_SILENCE * self.heartbeat_s:
            raise ValueError(
                f"group.silent_s = {self.silent_s}: must be {BEATS_OF_SILENCE} times group.heartbeat_s at least, "
                f"{BEATS_OF_SILENCE * self.heartbeat_s:g}"
            )


class DebugConfig(Slice, frozen=True):
    """`sockd invoke --debug`: one invocation that waits for a debugger."""

    requirement: str = "debugpy==1.8.22"
    """What is installed for it, as in a requirements.txt; a function that has debugpy among its packages uses its own."""
    max_s: float = 3600.0
    """How long it may take, the debugger's coming included; the function's own deadlines do not hold meanwhile."""
    memory_mb: int = 128
    """The memory of the debugger, in MB, besides the function's own."""


class LambdaApiConfig(Slice, frozen=True):
    """AWS's Lambda API on the public port."""

    enabled: bool = True
    """False: there is no such API."""
    keys: dict[str, str] = {}
    """Access key ids and their secrets; with any, every request of this API must be signed, without, it is Invoke only."""


class ManagementConfig(Slice, frozen=True):
    """Who manages the worker besides root: deploys to it, reads its logs, removes functions."""

    group: str = ""
    """A group of this host whose members do it over sockd.sock as root does; empty: none. SECURITY.md says what that is."""
    listen: str = ""
    """Address and port where those with a key do it (`sockd keys`, `sockd login`), a proxy with TLS in front; empty: nowhere."""
    plain_http: bool = False
    """Whether `listen` may be another address than loopback, where keys would cross the network in the clear."""


class SecretsConfig(Slice, frozen=True):
    """Environments of functions on the disk."""

    key_file: str | None = None
    """The key that they are sealed with, made when there is none; None is SOCKD_SECRET_KEY_FILE, else systemd's
    credential sockd.key, else secret.key in the state directory."""


class FunctionUrlsConfig(Slice, frozen=True):
    """Function URLs, on the public port."""

    enabled: bool = True
    """False: no request is for a URL, and none can be made."""
    domain: str = "localhost"
    """The domain of the URLs' names: <id>.lambda-url.<domain>. Clients must resolve these names to the address of this
    port."""


class PageConfig(Slice, frozen=True):
    """The page at `/`, which shows functions, their invocations and what they print."""

    enabled: bool | None = None
    """None: where the port listens on loopback. Elsewhere it asks for a key."""
    ask_for_key: bool = False
    """Ask for a key (`sockd keys`, `lambda_api.keys`) on loopback, too, as behind a proxy; elsewhere it always asks."""
    viewers: int = 32
    """Open pages that are kept up to date at once; others have to be reloaded."""


class Config(Slice, frozen=True):
    """Everything. `Config.load` is the only place that reads a file."""

    state_dir: str = "/var/lib/sockd"
    """Where everything is kept that outlives the worker."""
    http: HttpConfig = HttpConfig()
    function: FunctionDefaults = FunctionDefaults()
    sandbox: SandboxConfig = SandboxConfig()
    network: NetworkConfig = NetworkConfig()
    latency: LatencyConfig = LatencyConfig()
    zygote: ZygoteConfig = ZygoteConfig()
    packages: PackageConfig = PackageConfig()
    builds: BuildConfig = BuildConfig()
    code: CodeConfig = CodeConfig()
    initscripts: InitscriptsConfig = InitscriptsConfig()
    wasm: WasmConfig = WasmConfig()
    images: ImagesConfig = ImagesConfig()
    traces: TraceConfig = TraceConfig()
    logs: LogConfig = LogConfig()
    otlp: OtlpConfig = OtlpConfig()
    lambda_api: LambdaApiConfig = LambdaApiConfig()
    management: ManagementConfig = ManagementConfig()
    secrets: SecretsConfig = SecretsConfig()
    function_urls: FunctionUrlsConfig = FunctionUrlsConfig()
    page: PageConfig = PageConfig()
    debug: DebugConfig = DebugConfig()

    events: EventsConfig = EventsConfig()
    postgres: PostgresConfig = PostgresConfig()
    group: GroupConfig = GroupConfig()

    def __post_init__(self) -> None:
        if not self.group.name:
            return
        if not self.postgres.dsn:
            raise ValueError(
                "group.name needs a database that the group shares: set postgres.dsn, or use sockd up --join DSN"
            )
        for key, value in (("group.name", self.group.name), ("postgres.worker", self.worker_name)):
            if not _WORKER_NAME.fullmatch(value):
                raise ValueError(f"{key} = {value!r:.100}: in a group it is 1 to 64 of A-Z a-z 0-9 _ . -")

    @property
    def worker_name(self) -> str:
        """The name of this worker on its database."""
        return self.postgres.worker or (socket.gethostname() if self.group.name else "main")

    @property
    def cache_node_bytes(self) -> int:
        """The most bytes of chunks that this worker's own cache node keeps; 0: it has none."""
        return self.group.cache_node_memory_mb * MB if self.group.name and not self.images.nodes else 0

    @classmethod
    def load(cls, path: Path | None, **overrides: str) -> Config:
        """The configuration in a TOML file (none: the defaults) with the command line's overrides.

        Args:
            path: the file, or None.
            overrides: as given to `sockd up`, see `OPTIONS`.
        Raises: BadConfig, naming the key and what it should be."""
        try:
            table = toml.loads(path.read_text()) if path else {}
            _check_texts(table)
            _move_settings(table)
            for option, value in overrides.items():
                _set(table, OPTIONS[option], value)
            return msgspec.convert(table, cls)
        except (OSError, UnicodeDecodeError, toml.BadToml, OverflowError, msgspec.ValidationError) as error:
            raise BadConfig(f"{path or 'configuration'}: {_with_hint(str(error))}") from None


def _with_hint(words: str) -> str:
    """msgspec's words, of an unknown key with the one that is meant, or with those that there are."""
    found = _UNKNOWN.fullmatch(words)
    if found is None:
        return words
    key, section = found.groups()
    known = (getattr(Config(), section) if section else Config).__struct_fields__
    return f"{f'[{section}] ' if section else ''}{unknown_key(key, known)}"


def _set(table: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    """Replace one setting of a parsed file."""
    *sections, key = path
    for section in sections:
        table = table.setdefault(section, {})
    table[key] = value


def _move_settings(table: dict[str, Any]) -> None:
    """Take settings of before for what they are now, with a warning; the new name wins."""
    for section, key in (*MOVED, *REMOVED):
        settings = table.get(section)
        if not isinstance(settings, dict) or key not in settings:
            continue
        value = settings.pop(key)
        if (section, key) in REMOVED:
            _log.warning("%s.%s does nothing any more; take it out of the configuration", section, key)
            continue
        now, name = MOVED[section, key]
        _log.warning("%s.%s is %s.%s now", section, key, now, name)
        if isinstance(there := table.setdefault(now, {}), dict):
            there.setdefault(name, value)


def _check_texts(value: object, key: str = "") -> None:
    """Every text of it becomes a path, an address, an argument or a header: none has control characters. Raises: BadConfig."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not name.isprintable():
                raise BadConfig(f"{key}{name!r:.100}: a name with control characters")
            _check_texts(inner, f"{key}{name}.")
    elif isinstance(value, list):
        for inner in value:
            _check_texts(inner, key)
    elif isinstance(value, str) and not value.isprintable():
        raise BadConfig(f"{key.removesuffix('.')} = {value!r:.100}: text with control characters")
