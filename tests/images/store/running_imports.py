"""Imports of images in confined processes, from a scripted registry, and the directories that they leave."""

from __future__ import annotations

from pathlib import Path

from sockd.images.registry import documents
from sockd.images.registry.limits import Limits
from sockd.images.registry.reference import Reference
from sockd.images.store.import_runs import FILE, Compile, ImportRuns, ImportSettings
from sockd.images.store.import_wire import Imported
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from tests.support.images.erofs_reader import ErofsReader
from tests.support.images.oci_images import Blobs, link, member, tar
from tests.support.images.scripted_registry import Script

UID = 0x0FFFFF05


LAYERS = [
    tar([member("bin/f", b"#!program", mode=0o755), member("data", bytes(range(256)) * 10_000)]),
    tar([link("bin/g", "f"), member("etc/", None), member("gone/.wh.x", b"")]),
]


class Imports:
    """Runs of imports and the directories that they leave."""

    def __init__(self, path: Path, pool: CgroupPool) -> None:
        self.path = path
        self._pool = pool
        self.progress: list[str] = []
        self.file = b""

    async def run(
        self,
        reference: str,
        *,
        path: str = "",
        is_wanted: bool = True,
        compile_sources: Compile | None = None,
        **settings: object,
    ) -> Imported:
        values = {"uid": UID, "limits": Limits(), "deadline_s": 60.0, **settings}
        runs = ImportRuns(ImportSettings(**values), self.path, self._pool.take, self._pool.give_back)  # type: ignore[arg-type]
        runs.compile = compile_sources
        directory = self.path / "image"
        directory.mkdir(exist_ok=True)

        async def wanted(digest: str) -> bool:
            return is_wanted

        try:
            found = await runs.run(
                Reference.parse(reference), directory, self.progress.append, path=path, is_wanted=wanted
            )
            assert (found is not None) == is_wanted
            return found  # type: ignore[return-value]
        finally:
            assert {each.name for each in self.path.iterdir()} <= {"image", "archive.tar", "config.json"}
            assert [each.name for each in directory.iterdir()] in ([], [FILE])
            if (directory / FILE).exists():
                self.file = (directory / FILE).read_bytes()
                (directory / FILE).unlink()


def script(layers: list[bytes] | None = None) -> Script:
    blobs = Blobs()
    manifest = blobs.image(LAYERS if layers is None else layers, Entrypoint=["/bin/f"], Env=["PATH=/opt/python/bin"])
    return Script({"v1": (manifest, documents.OCI_MANIFEST)}, dict(blobs))


def reader(data: bytes) -> ErofsReader:
    return ErofsReader(lambda offset, size: data[offset : offset + size])
