"""A function's settings: what its `sockd.toml` may say, and what holds when it is silent.

Pure. The numbers and their defaults are those of the worker's `FunctionDefaults`; limits are AWS Lambda's where it has
one, wider where its reason (billing, its own hosts) is not ours.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from sockd.base import toml
from sockd.base.config import ErrorDetail, FunctionDefaults, RunRule
from sockd.base.errors import BadArchive, BadFunctionConfig, SecretsLocked
from sockd.functions.code.archive import checked_path
from sockd.functions.code.service_config import SERVICE, ServiceConfig
from sockd.functions.code.setting_checks import (
    check_bounds,
    check_deployer,
    check_env,
    check_env_texts,
    check_keys,
    check_methods,
    check_python,
    error_words,
    is_unicode,
    number_words,
)
from sockd.functions.code.stored_settings import read_settings
from sockd.starts.packages.indexes import Chosen

BOUNDS: dict[str, tuple[float, float]] = {
    "memory_mb": (32, 10240),
    "reserved_memory_mb": (0, 1 << 20),
    "timeout_s": (0.001, 900),
    "init_timeout_s": (0.001, 900),
    "concurrency": (0, 1000),
    "queue_depth": (0, 100_000),
    "pids": (1, 32768),
    "open_files": (32, 65536),
    "sockets": (0, 1 << 20),
    "cpus": (0.01, 256),
    "tmp_mb": (1, 10240),
    "tmp_inodes": (16, 10_000_000),
    "log_bytes": (0, 6 << 20),
}
"""Least and most of each number. AWS: memory 128-10240 MB (a no-op here lives in 32), timeout 1-900 s, concurrency 1000
an account, /tmp 512-10240 MB, 1024 open files and 1024 processes. cpus: the least that a cgroup's quota can say."""

INITSCRIPT_BOUNDS: dict[str, tuple[float, float]] = {
    "deadline_s": (0.001, 900),
    "cpu_ms": (1, 900_000),
    "memory_mb": (1, 1024),
    "region_mb": (1, 10240),
    "rpcs": (1, 10_000),
    "connections": (1, 1000),
    "messages": (0, 10_000),
}
"""The least and the most of each number in the table [initscript]."""
ARGS_BYTES = 32 * 1024
ENDPOINT = re.compile(r"[A-Za-z0-9*._/:\[\]-]{1,300}")
MAX_ENDPOINTS = 100
MAX_INDEXES = 10
MAX_EGRESS = 4096
"""The most entries of `egress`, before it is parsed; `network.max_rules` is lower."""

PATH = re.compile(r"/[!-~]{0,1023}")
"""The path of a request."""
PROGRAM = "provided"
"""The runtime of a function that is a program of its own."""
IMAGE_CHARS = 2048
COMMAND_WORDS = 1500
"""AWS: of EntryPoint and of Command; 1500 and 1000 characters."""
COMMAND_CHARS = 32 * 1024
ONLY_WITH_IMAGE = (
    "entrypoint",
    "command",
    "working_directory",
    "app_port",
    "readiness_path",
    "writable_root",
)
NOT_OF_SERVICES = ("app", "app_port", "snapshot")
MASK = "********"
"""Stands for a value that is not shown."""
NOT_IN_FILES = ("secrets", "sealed", "aws", "deployer", "by_command")


class InitscriptConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the initscript of a function is given, and what one run of it may use."""

    wasm: str | None = None
    """The module, a file of the code; None: it is uploaded with the code."""
    args: str | None = None
    """What the script reads as its input; None: the event."""
    deadline_s: float = 10.0
    """The time of one run, in seconds."""
    cpu_ms: int = 100
    """The time of a processor for one run, in milliseconds."""
    memory_mb: int = 16
    """Linear memory, in MB."""
    region_mb: int = 256
    """Shared memory for what it fetches, in MB."""
    rpcs: int = 1000
    """Most that one run may send."""
    connections: int = 64
    """Most that one run may have open."""
    messages: int = 1000
    """Most that one run may pass on to the function."""
    endpoints: list[str] | None = None
    """Where it may connect to: host, host:port, *.suffix, or a network, of which no name is resolved. None: anywhere but
    link-local addresses, `initscripts.denied` and the daemon's own ports; for a function without network: nowhere."""

    def check(self) -> None:
        """Raises BadFunctionConfig for the first value out of its bounds."""
        check_bounds(self, INITSCRIPT_BOUNDS, "initscript.")
        if self.args is not None and (not is_unicode(self.args) or len(self.args.encode()) > ARGS_BYTES):
            raise BadFunctionConfig(f"initscript.args: must be text of at most {ARGS_BYTES} bytes")
        if self.wasm is not None:
            try:
                checked_path(self.wasm)
                if not self.wasm.isprintable():
                    raise BadArchive("control characters")
            except (BadArchive, UnicodeEncodeError):
                raise BadFunctionConfig(f"initscript.wasm = {self.wasm[:80]!r}: must be a file of the code") from None
        if self.endpoints is not None and len(self.endpoints) > MAX_ENDPOINTS:
            raise BadFunctionConfig(f"initscript.endpoints: at most {MAX_ENDPOINTS}")
        for endpoint in self.endpoints or ():
            if not ENDPOINT.fullmatch(endpoint):
                raise BadFunctionConfig(f"initscript.endpoints: {endpoint[:80]!r} is not host, host:port or a network")


class FunctionPackages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Where a function's packages come from, besides those that it names."""

    index: str | None = None
    """The index, by its name in the worker's `packages.indexes`, or by the URL of one that the worker has; None: its own."""
    extra_index: list[str] = []
    """Indexes that are searched before `index`."""
    default: bool = True
    """Whether it is given those of the worker's `packages.default` that its code or packages mention."""

    @property
    def chosen(self) -> Chosen:
        return Chosen(self.index, tuple(self.extra_index))

    def check(self) -> None:
        """Raises: BadFunctionConfig."""
        for url in (self.index or "", *self.extra_index):
            if len(url) > 2000 or not url.isprintable() or "@" in url:
                raise BadFunctionConfig(
                    "packages.index: must be a name or a URL without credentials; those are the worker's (packages.indexes)"
                )
        if len(self.extra_index) > MAX_INDEXES:
            raise BadFunctionConfig(f"packages.extra_index: at most {MAX_INDEXES}")


class AwsAttributes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Attributes that clients of AWS's API have set on a function and get back; nothing here changes how it runs."""

    description: str = ""
    role: str = ""
    runtime: str = ""
    tags: dict[str, str] = {}
    zip_sha256: str = ""
    """The SHA-256 of the archive as it was uploaded, base64; with `zip_bytes`, its size."""
    zip_bytes: int = 0
    reserved_concurrency: int | None = None
    """`concurrency`, if it was set there."""


class FunctionConfig(FunctionDefaults, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one version of a function."""

    kind: Literal["function", "service"] = "function"
    """service: a program that keeps running and serves a port (`[service]`)."""
    service: ServiceConfig | None = None
    """How the program of a service is reached, and how long it runs."""
    handler: str | None = None
    """As written, "module:attr" or AWS's "module.attr"; None: detected from the files (`entrypoint`)."""
    app: Literal["wsgi", "asgi", "auto"] | None = None
    """What kind of web app the handler is; auto: one of the two. None: a function of events, unless its files or the handler
    itself say otherwise."""
    methods: list[str] | None = None
    """HTTP methods by which it can be called; `*` is all. None: GET and POST, a web app by all."""
    run: RunRule | None = None
    """Who may call it at /run: everybody (open), those with a key (keys), none (off); None: as the worker's `http.run`, which
    holds besides, so that this can only be stricter. Of all its versions, what was deployed last says it."""
    errors: ErrorDetail | None = None
    """What /run tells of an exception of this function: all of it (full), or the request's id; None: as the worker's
    `http.errors` says. Of all its versions, what was deployed last says it."""
    reuse_sandbox: bool = True
    """Whether a sandbox serves more than one request."""
    runtime: Literal["python", "provided", "wasm"] | None = None
    """provided: a program of its own, which speaks to the Runtime API; None: that if there is an executable bootstrap. wasm: a
    WebAssembly module, `handler = "FILE.wasm"`: a WASI command, or a component that exports `handle`; of a service, a component
    for wasi:http."""
    image: str | None = None
    """The container image that it runs in: a reference for the registry, or the digest of an image that the worker has. None: the
    host's software."""
    entrypoint: list[str] | None = None
    """Instead of the image's ENTRYPOINT. As on AWS, its CMD still holds; an empty `command` is none."""
    command: list[str] | None = None
    """Instead of the image's CMD. Of a service without an image: what runs in the directory of its code; None: its bootstrap."""
    working_directory: str | None = None
    """Instead of the image's WORKDIR."""
    app_port: int | None = None
    """Port of a web server in the image, to which requests are forwarded; None: the one that the image exposes,
    or its program asks the Runtime API for events."""
    readiness_path: str = "/"
    """What is requested of that server until it answers."""
    writable_root: bool = False
    """Whether each sandbox may change its image's files, for itself; what is written counts as /tmp (`tmp_mb`)."""
    python: str | None = None
    """Version of the interpreter that runs it, as "3.13"; None: the worker's own."""
    reserved_memory_mb: int = 0
    """Memory that only this function's sandboxes may use, taken from the worker's budget while it is deployed."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """The environment, 4 KB together; never in a Zygote or a log."""
    snapshot: bool = False
    """Whether its starts are forked from a process that has run its init once (a template), as with AWS's SnapStart."""
    storage: Literal["own", "sockd"] = "own"
    """The owner of the `storage` and `nosql` modules that the function imports: its package (`own`), or sockd, whose library
    takes what an initscript has fetched."""
    zygote: Literal["packages", "stdlib", "none"] = "packages"
    """What may be imported ahead for it: its packages and modules of the standard library, the latter alone, or nothing."""
    initscript: InitscriptConfig | None = None
    """The initscript's, if the function has one."""
    build: bool = False
    """Whether its deploys may build packages from source, in a sandbox: those without a wheel, and those given by a URL."""
    packages: FunctionPackages = FunctionPackages()
    """Which packages it gets that it does not name, and from which index."""
    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    """As `env`, but set one by one, kept over deploys and never shown."""
    sealed: str | None = None
    """In the registry: what the two above are (`sockd.functions.registry.secrets`); it is still sealed."""
    aws: AwsAttributes | None = None
    deployer: dict[str, str] = msgspec.field(default_factory=dict)
    """For a decorated function, `source`, the FILE:FUNCTION that it was deployed from, and `key`, which signs its deployer's
    calls (`sockd.base.call_signature`), in hex. Each deploy sets it; it is kept sealed and never given to a sandbox."""

    by_command: list[str] = msgspec.field(default_factory=list)
    """What commands have set, which deploys keep (`kept_settings`)."""

    @classmethod
    def from_toml(
        cls,
        text: str | None,
        defaults: FunctionDefaults,
        overrides: dict[str, Any] | None = None,
        *,
        beneath: dict[str, Any] | None = None,
    ) -> FunctionConfig:
        """The settings in a `sockd.toml` (None: there is none).

        Args:
            text: the file.
            defaults: the worker's, for every key that is not in the file.
            beneath: what another file says (`ol_yaml`); this one wins, and so does each of its variables.
            overrides: of this deploy; they win over the file. None as a value means not overridden.
        Raises: BadFunctionConfig, naming the key and what it should be."""
        try:
            table = toml.loads(text or "")
        except toml.BadToml as error:
            raise BadFunctionConfig(f"sockd.toml: {error}") from None
        given = {key: value for key, value in (overrides or {}).items() if value is not None}
        keys = tuple(key for key in cls.__struct_fields__ if key not in NOT_IN_FILES)
        check_keys(table, keys)
        check_keys([key for key in given if key not in ("aws", "deployer")], keys)
        check_env_texts(table.get("env"))
        table |= given
        if beneath:
            if isinstance(table.get("env"), dict):
                table["env"] = beneath.get("env", {}) | table["env"]
            table = beneath | table
        if isinstance(table.get("initscript"), dict):
            check_keys(table["initscript"], InitscriptConfig.__struct_fields__, "initscript.")
        if isinstance(table.get("packages"), dict):
            check_keys(table["packages"], FunctionPackages.__struct_fields__, "packages.")
        if isinstance(table.get("service"), dict):
            check_keys(table["service"], ServiceConfig.__struct_fields__, "service.")
        if table.get("kind") == SERVICE:
            table.setdefault("runtime", PROGRAM)
        try:
            config = msgspec.convert(msgspec.structs.asdict(defaults) | table, cls)
        except (msgspec.ValidationError, OverflowError, RecursionError) as error:
            raise BadFunctionConfig(error_words(error, cls, table.keys() - given)) from None
        config.check()
        if "egress" in table:
            config.check_egress()
        return config

    @classmethod
    def from_json(cls, text: str) -> FunctionConfig:
        """Read what `to_json` wrote. It is not checked again, so that a tightened limit does not break what is deployed."""
        return read_settings(text, cls)

    def opened(self) -> FunctionConfig:
        """Return these settings. Raises: SecretsLocked: no key here opens their environment."""
        if self.sealed is not None:
            raise SecretsLocked(
                "the variables and secrets of this function do not open with the worker's key: put the right key back "
                "([secrets] key_file, or secret.key in the state directory; a backup may have it) and start sockd again, or, if "
                "it is lost, deploy the function with --force, which loses them"
            )
        return self

    def changed(self, changes: dict[str, Any]) -> FunctionConfig:
        """With other values for some keys; what is a secret stays one, whatever `env` says of it.

        Raises: BadFunctionConfig, as `from_toml`."""
        try:
            config = msgspec.convert(msgspec.to_builtins(self) | changes, FunctionConfig).without_shadowed()
        except (msgspec.ValidationError, OverflowError, RecursionError) as error:
            raise BadFunctionConfig(error_words(error, FunctionConfig)) from None
        config.check()
        return config

    def with_secrets(self, secrets: dict[str, str]) -> FunctionConfig:
        """These settings with the secrets of the version before. Raises: BadFunctionConfig when they are too much."""
        config = msgspec.structs.replace(self, secrets=secrets).without_shadowed()
        config.check()
        return config

    def without_shadowed(self) -> FunctionConfig:
        """These settings without variables that are secrets: a client of AWS's API sends back what it was shown of them."""
        env = {name: value for name, value in self.env.items() if name not in self.secrets}
        return msgspec.structs.replace(self, env=env)

    @property
    def source(self) -> str:
        """What the function was deployed from, if that is a decorated function."""
        return self.deployer.get("source", "")

    @property
    def call_key(self) -> bytes | None:
        """What its deployer's calls and their answers are signed with."""
        return bytes.fromhex(self.deployer["key"]) if "key" in self.deployer else None

    @property
    def json_log_level(self) -> str:
        """The level of the platform's events in a log of JSON; empty if the log is text."""
        return (self.system_log_level or "info") if self.log_format == "json" else ""

    @property
    def environment(self) -> dict[str, str]:
        """All that the function is given."""
        return self.env | self.secrets

    @property
    def shown_environment(self) -> dict[str, str]:
        """All of it, without what is secret."""
        return self.env | dict.fromkeys(self.secrets, MASK)

    def with_shared(self, other: FunctionConfig) -> FunctionConfig:
        """These settings, and of another version what all versions of a function share: what it may use, and its tags."""
        own, theirs = self.aws or AwsAttributes(), other.aws or AwsAttributes()
        aws = msgspec.structs.replace(own, tags=theirs.tags, reserved_concurrency=theirs.reserved_concurrency)
        return msgspec.structs.replace(
            self,
            concurrency=other.concurrency,
            queue_depth=other.queue_depth,
            reserved_memory_mb=other.reserved_memory_mb,
            run=other.run,
            errors=other.errors,
            egress=other.egress,
            aws=aws if aws != AwsAttributes() else None,
        )

    def to_json(self) -> str:
        """As the registry keeps it."""
        return msgspec.json.encode(self).decode()

    def check(self) -> None:
        """Raises BadFunctionConfig for the first value out of its bounds."""
        check_bounds(self, BOUNDS)
        if self.concurrency and self.reserved_memory_mb > self.memory_mb * self.concurrency:
            raise BadFunctionConfig(
                f"reserved_memory_mb = {self.reserved_memory_mb}: more than the function can use, "
                f"which is memory_mb x concurrency = {self.memory_mb * self.concurrency}"
            )
        if self.log_format == "text" and (self.log_level or self.system_log_level):
            raise BadFunctionConfig('log_level and system_log_level go with log_format = "json"')
        if self.egress is not None and len(self.egress) > MAX_EGRESS:
            raise BadFunctionConfig(f"egress: at most {MAX_EGRESS} rules")
        self.check_service()
        self.check_words()
        self.check_image()
        self.check_wasm()
        check_python(self.python)
        check_methods(self.methods)
        check_env(self.environment)
        check_deployer(self.deployer)
        self.packages.check()
        if self.initscript is not None:
            self.initscript.check()

    def check_words(self) -> None:
        """Raises: BadFunctionConfig for a program that cannot be named so."""
        for key, words in (("entrypoint", self.entrypoint), ("command", self.command)):
            if words is not None and (len(words) > COMMAND_WORDS or sum(map(len, words)) > COMMAND_CHARS):
                raise BadFunctionConfig(f"{key}: at most {COMMAND_WORDS} words and {COMMAND_CHARS} characters")
            if any("\0" in word or not is_unicode(word) for word in words or ()):
                raise BadFunctionConfig(f"{key}: a word holds a zero byte or half of a surrogate pair")

    def check_image(self) -> None:
        """Raises: BadFunctionConfig for settings of an image that are wrong, or that only a function with an image has."""
        if self.image is None:
            for key in ONLY_WITH_IMAGE:
                if getattr(self, key) != getattr(FunctionConfig(), key) and (key, self.kind) != ("command", SERVICE):
                    raise BadFunctionConfig(f"{key}: goes with image, and this function has none")
            return
        if not 1 <= len(self.image) <= IMAGE_CHARS or not self.image.isprintable():
            raise BadFunctionConfig(f"image: must be 1 to {IMAGE_CHARS} printable characters")
        if self.working_directory is not None and not self.working_directory.startswith("/"):
            raise BadFunctionConfig("working_directory: must be an absolute path in the image")
        if self.app_port is not None and not 1 <= self.app_port <= 65535:
            raise BadFunctionConfig(f"app_port = {number_words(self.app_port)}: must be between 1 and 65535")
        if not PATH.fullmatch(self.readiness_path):
            raise BadFunctionConfig(
                "readiness_path: must begin with a slash, and be ASCII without spaces of at most 1024 characters"
            )
        if self.initscript is not None:
            raise BadFunctionConfig("initscript: a function with an image has none")

    def check_wasm(self) -> None:
        """Raises: BadFunctionConfig for settings that a WebAssembly module cannot have."""
        if self.runtime == "wasm":
            for key in ("image", "app"):
                if getattr(self, key) is not None:
                    raise BadFunctionConfig(f'{key}: a function with runtime = "wasm" has none')

    def check_service(self) -> None:
        """Raises: BadFunctionConfig for a service without a port, or settings that a service cannot have."""
        if self.kind != SERVICE:
            if self.service is not None:
                raise BadFunctionConfig('[service] goes with kind = "service"')
            return
        if self.service is None:
            raise BadFunctionConfig(
                'kind = "service" needs a table [service]. With network = "host" it may be empty: the program listens on the '
                'port that the variable PORT names. With network = "private" or "none" it has the program\'s port: port = 8080'
            )
        self.service.check(shares_ports=self.network == "host")
        if self.runtime not in (None, PROGRAM, "wasm"):
            raise BadFunctionConfig(f'runtime = "{self.runtime}": a service is a program, and has none')
        if self.runtime == "wasm" and self.command is not None:
            raise BadFunctionConfig(
                "command: a service that is a component for wasi:http has none: its host is its program"
            )
        for key in NOT_OF_SERVICES:
            if getattr(self, key):
                raise BadFunctionConfig(f"{key}: a service has none")
        if self.image is None and self.command is not None and not any(self.command[:1]):
            raise BadFunctionConfig('command: must begin with a program, such as ["./server"]')

    def check_egress(self) -> None:
        """Check rules that were given, not inherited. Raises: BadFunctionConfig if they would mean nothing."""
        if self.egress is not None and self.network != "private":
            raise BadFunctionConfig(
                f'egress goes with network = "private"; this function has network = "{self.network}"'
            )
