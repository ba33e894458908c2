"""What the worker's images stand on: the chunk store, its keys, the agent, and the garbage collector.

Nothing is opened or started before the first image.
"""

from __future__ import annotations

import asyncio
import configparser
import os
import socket
import ssl
import stat
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from sockd.base import uids
from sockd.base.blocking import in_thread
from sockd.base.config import MB, Config, ImagesConfig
from sockd.base.errors import BadConfig, SockdError
from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.agent_keeper import agent_link
from sockd.images.agent_keeper.agent_directory import L1_FILE
from sockd.images.agent_keeper.agent_link import AgentSettings
from sockd.images.agent_keeper.cache_node import CacheNode
from sockd.images.agent_keeper.fuse_mount import ENDS
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.caches.node_set import node_address
from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.collector import Collector
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.layout import check_part
from sockd.images.chunks.root_watch import RootWatch
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.store_settings import StoreSettings, open_store, s3_place
from sockd.images.registry.limits import Limits
from sockd.images.store.chunked_importer import ChunkedImporter
from sockd.images.store.image_garbage import ImageGarbage
from sockd.images.store.image_store import ImageStore
from sockd.images.store.import_runs import ImportRuns, ImportSettings
from sockd.images.store.opened_store import ChunkParts
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.jail import built, jail_on
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.confined.confined_process import Jail
from sockd.linux.ways import Release
from sockd.worker.builders.linux_parts import LinuxParts
from sockd.worker.state_dir import StateDir

OWN_STORE = "chunks"
"""In the state directory, whose entries are closed to others. The store is a directory in this one: the agent, which is
another user, has a descriptor of it."""
LOCAL_GRACE_S = 120.0
SHARED_GRACE_S = 24 * 3600.0


class ImageParts:
    """The parts of one worker that concern images. Owns the root that the agent's process stands on."""

    def __init__(
        self,
        config: ImagesConfig,
        state: Path,
        worker_id: str,
        cgroups: CgroupPool,
        base_uid: int,
        *,
        has_group: bool = False,
        kernel: Release | None = None,
    ) -> None:
        """Args:
            worker_id: of the state directory.
            has_group: workers of a group run cache nodes.
            kernel: take no way that is newer than this one; None: any.
        Raises: BadConfig."""
        self._config = config
        self._has_group = has_group
        self._may_resend = kernel is None or kernel >= ENDS.ways[0].since
        self._nodes: Mapping[str, str] = {node: node for node in config.nodes}
        self._agent: ImageAgent | None = None
        self._building = asyncio.Lock()
        self._state = state
        self._settings = store_settings(config, state)
        self._docker_config = docker_config(config)
        self._ca_file = ca_file(config)
        self._worker = config.worker or f"{socket.gethostname() or 'worker'}.{worker_id}"
        check_parts(config, self._worker)
        self._cgroups = cgroups
        self._base_uid = base_uid
        self._root: Base | None = None
        self._store: ChunkStore | None = None
        default_s = LOCAL_GRACE_S if self._settings.is_directory else SHARED_GRACE_S
        self._grace_s = default_s if config.gc_grace_s is None else config.gc_grace_s

    def importer(self) -> ChunkedImporter:
        config = self._config
        settings = ImportSettings(
            uid=self._base_uid - uids.IMPORTER_BELOW,
            limits=Limits(max_bytes=config.max_image_mb * MB, max_layers=config.max_layers, max_files=config.max_files),
            deadline_s=config.import_timeout_s,
            insecure_registries=config.insecure_registries,
            redirect_hosts=config.redirect_hosts,
            docker_config=self._docker_config,
            mirrors=config.mirrors,
            ca_file=self._ca_file,
        )
        runs = ImportRuns(settings, self._state / "tmp", self._cgroups.take, self._cgroups.give_back)
        return ChunkedImporter(
            self._state / "images",
            self._open,
            self._start_agent,
            runs,
            keeps_ready=config.ready is not False,
            profile_bytes=config.profile_mb * MB,
            cache=self._state / "agent" / L1_FILE,
            stall_s=config.stall_s,
        )

    def garbage(self, importer: ChunkedImporter) -> ImageGarbage:
        return ImageGarbage(
            importer,
            lambda: Collector(self._opened(), worker=self._worker, grace_s=self._grace_s),
            self._watch,
        )

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        """Have chunks from other cache nodes from now on. Args: nodes: ADDRESS:PORT by name."""
        self._nodes = nodes
        if self._agent is not None:
            self._agent.use_nodes(nodes)

    async def start_node(self, listening: socket.socket, memory_bytes: int) -> CacheNode:
        """Start a cache node of this worker's. Args: as of `CacheNode`. Raises: OSError, SecretsLocked."""
        uid = self._base_uid - uids.NODE_BELOW
        return CacheNode(
            await self._jail(), uid, listening, memory_bytes=memory_bytes, token=await in_thread(self._token)
        )

    def close(self) -> None:
        if self._root is not None:
            self._root.close()

    def _open(self) -> ChunkParts:
        """Blocks. Raises: BadConfig, SecretsLocked, ChunkStoreFailed."""
        path = Path(self._config.key_file) if self._config.key_file else self._state / "images.key"
        keys = ImageKeys.at(path, make=self._config.key_file is None)
        if self._config.store is None:
            (self._state / OWN_STORE).mkdir(mode=0o700, exist_ok=True)
            self._store = DirectoryStore.create(Path(self._settings.url))
        else:
            self._store = open_store(self._settings)
        catalog = Catalog(
            self._store,
            keys,
            worker=self._worker,
            watch=self._watch(),
            tenant=self._config.tenant,
            zone=self._config.zone,
            epoch=self._config.salt_epoch,
            salt_per_tenant=self._config.salt_per_tenant,
        )
        return ChunkParts(self._store, catalog, keys.blob_key())

    def _opened(self) -> ChunkStore:
        assert self._store is not None, "the importer opens the store"
        return self._store

    def _watch(self) -> RootWatch:
        return RootWatch(self._opened(), self._worker, max_age_s=self._grace_s / 2)

    async def _start_agent(
        self, on_trouble: Callable[[str, SockdError], None], on_refused: Callable[[str], None]
    ) -> ImageAgent:
        config = self._config
        jail, token = await self._jail(), await in_thread(self._token)
        nodes = self._nodes
        source = SourceSettings(store=self._settings, l1_bytes=config.cache_mb * MB, nodes=dict(nodes), token=token)
        settings = AgentSettings(
            uid=self._base_uid - uids.AGENT_BELOW,
            source=source,
            on_demand=config.on_demand,
            may_resend=self._may_resend,
            stall_s=config.stall_s,
            answer_s=config.agent_answer_s,
            fill_bytes_s=config.fill_mb_s * MB,
            startup_bytes=config.startup_mb * MB,
        )
        self._agent = await ImageAgent.start(jail, settings, self._state / "agent", on_trouble, on_refused)
        if self._nodes is not nodes:  # they changed meanwhile
            self._agent.use_nodes(self._nodes)
        return self._agent

    async def _jail(self) -> Jail:
        """Where the agent runs, and a cache node. Raises: OSError."""
        places, root = agent_link.places(), self._state / "agent-root"
        async with self._building:
            if self._root is None:
                self._root = await in_thread(built, root, places)
        return jail_on(root, places, self._cgroups.take, self._cgroups.give_back)

    def _token(self) -> str:
        """Return the token of the cache nodes. Blocks. Raises: BadConfig, SecretsLocked."""
        if self._has_group and not self._config.nodes:
            return ImageKeys.at(Path(self._config.key_file or "")).node_token()
        return _token(self._config.nodes_token_file)


@dataclass(frozen=True, slots=True)
class OpenedImages:
    """The images of one worker."""

    store: ImageStore
    garbage: ImageGarbage
    importer: ChunkedImporter
    parts: ImageParts


def open_images(config: Config, state: StateDir, base: Base, linux: LinuxParts, stack: AsyncExitStack) -> OpenedImages:
    """Open the images of an earlier worker on `stack`. Nothing is started."""
    mounting = ImageMounting.open(linux.ways, state.path / "mounted", config.sandbox.kernel_release)
    stack.callback(mounting.close)
    parts = ImageParts(
        config.images,
        state.path,
        state.id,
        linux.cgroups,
        config.sandbox.base_uid,
        has_group=bool(config.group.name),
        kernel=config.sandbox.kernel_release,
    )
    stack.callback(parts.close)
    importer = parts.importer()
    store = ImageStore(
        state.path / "images", state.path / "tmp", base, importer, mounting, most_cold=config.images.cold_starts
    )
    importer.import_for(store)
    store.recover()
    stack.push_async_callback(store.aclose)
    garbage = parts.garbage(importer)
    garbage.start()
    stack.push_async_callback(garbage.aclose)
    return OpenedImages(store, garbage, importer, parts)


def store_settings(config: ImagesConfig, state: Path) -> StoreSettings:
    """Where the store is, with its credentials. Raises: BadConfig."""
    if config.store is None:
        return StoreSettings(url=str(state / OWN_STORE / "store"))
    if not config.store.startswith("s3://"):
        if not config.store.startswith("/"):  # a worker in the background has another working directory
            raise BadConfig(
                f"images.store = {config.store!r}: must be s3://BUCKET/PREFIX or a directory's absolute path"
            )
        check_directory(Path(config.store))
        return StoreSettings(url=config.store)
    s3_place(config.store)
    keys = _credentials(Path(config.credentials_file)) if config.credentials_file else dict(os.environ)
    found = {name.upper(): value for name, value in keys.items()}
    access_key, secret_key = found.get("AWS_ACCESS_KEY_ID", ""), found.get("AWS_SECRET_ACCESS_KEY", "")
    if not access_key or not secret_key:
        raise BadConfig(
            "images.store is in S3, and there are no keys for it: set images.credentials_file, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    return StoreSettings(
        url=config.store,
        endpoint=config.endpoint,
        region=config.region,
        access_key=access_key,
        secret_key=secret_key,
        session_token=found.get("AWS_SESSION_TOKEN") or None,
        attempt_s=config.store_attempt_s,
    )


def check_directory(path: Path) -> None:
    """Check the directory of a store. It is never made: where a file system is not mounted, images would go to the disk
    below. Raises: BadConfig."""
    what = f"images.store = {str(path)!r}"
    try:
        is_directory = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        raise BadConfig(
            f"{what}: there is no such directory; mount its file system before the worker starts, or make the directory: "
            f"mkdir {path}"
        ) from None
    except OSError as error:
        raise BadConfig(f"{what}: cannot be used: {error.strerror}") from None
    if not is_directory:
        raise BadConfig(f"{what}: is a file; it must be the absolute path of a directory")


def docker_config(config: ImagesConfig) -> Path:
    """The file with credentials for registries; without a setting, it need not be there. Raises: BadConfig."""
    if not config.docker_config:
        return Path("~/.docker/config.json").expanduser()
    path = Path(config.docker_config).expanduser()
    what = f"images.docker_config = {config.docker_config!r}"
    if not path.is_absolute():  # a worker in the background has another working directory
        raise BadConfig(f"{what}: must be an absolute path, of a file as `docker login` writes it")
    if not path.is_file():
        raise BadConfig(f"{what}: there is no such file; `docker login` writes it")
    return path


def ca_file(config: ImagesConfig) -> Path | None:
    """The file with certificates of further authorities. Raises: BadConfig."""
    if config.ca_file is None:
        return None
    path = Path(config.ca_file)
    what = f"images.ca_file = {config.ca_file!r}"
    if not path.is_absolute():
        raise BadConfig(f"{what}: must be an absolute path, of a file with certificates (PEM)")
    try:
        ssl.create_default_context(cadata=path.read_text())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadConfig(f"{what}: cannot be read as certificates (PEM): {error}") from None
    return path


def check_parts(config: ImagesConfig, worker: str) -> None:
    """The names that objects in the store get, and the cache nodes. Raises: BadConfig."""
    for node in config.nodes:
        node_address(node)
    for key, text in (("worker", worker), ("tenant", config.tenant)):
        check_name(key, text)


def check_name(key: str, text: str) -> None:
    """Check the name of a worker or a tenant, which is a part of objects' names. Raises: BadConfig."""
    try:
        check_part(text, "a name")
    except ValueError:
        raise BadConfig(
            f"images.{key} = {text!r}: must be 1 to 200 of A-Z a-z 0-9 . _ : = -, the first no . : ="
        ) from None


def _token(path: str | None) -> str:
    """The first line of a file, as `sockd cache-node` reads it. Raises: BadConfig."""
    if path is None:
        return ""
    try:
        return Path(path).read_text("ascii").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        raise BadConfig(f"images.nodes_token_file: {path} cannot be read") from None


def _credentials(path: Path) -> dict[str, str]:
    """The section `default`. Raises: BadConfig."""
    try:
        with open(path) as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise BadConfig(f"{path} must be readable by its owner alone: chmod 600 {path}")
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_file(file)
            return dict(parser["default"])
    except OSError as error:
        raise BadConfig(f"images.credentials_file: {path} cannot be read: {error.strerror}") from None
    except (configparser.Error, KeyError, UnicodeDecodeError):
        # The parser's own message quotes lines of the file.
        raise BadConfig(f"images.credentials_file: {path} has no section [default] with keys") from None
