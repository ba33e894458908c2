"""Imports in a confined process: what it writes, what is refused, and that nothing is left of one that fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from sockd.base.errors import (
    BadImage,
    ImageAccessDenied,
    ImageTooLarge,
    NoSuchImage,
    RegistryUnavailable,
)
from sockd.images.registry.image import ImageConfig
from sockd.images.registry.limits import MOST_CONFIG_TEXTS, Limits
from sockd.images.store import import_wire
from sockd.images.store.image_facts import ImageFacts
from sockd.images.store.import_wire import Imported
from tests.images.registry.test_registry import certificate
from tests.images.store.running_imports import LAYERS, Imports, reader, script
from tests.support.cases import case
from tests.support.images.oci_images import Blobs, digest, member, tar
from tests.support.images.scripted_registry import Script, scripted_registry

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def test_an_image_of_a_registry_becomes_a_file_system(imports: Imports) -> None:
    one = script()
    with scripted_registry(one) as address:
        record = await imports.run(f"{address}/team/app:v1")
    assert record.digest == digest(one.manifests["v1"][0])
    assert (record.layers, record.size_bytes) == (2, len(imports.file)) and record.metadata_chunks == 1
    assert (record.facts.command, record.config.entrypoint) == ("/bin/f", ("/bin/f",))
    files = reader(imports.file)
    assert files.read_file("bin/g") == b"#!program" and files.read_file("data") == bytes(range(256)) * 10_000
    assert {"proc", "tmp", "dev", "var"} <= set(files.list_directory(""))
    assert "merging layers" in imports.progress


async def test_the_same_layers_become_the_same_bytes(imports: Imports) -> None:
    found = []
    for _ in range(2):
        with scripted_registry(script()) as address:
            await imports.run(f"{address}/team/app:v1")
        found.append(imports.file)
    assert found[0] == found[1]


async def test_an_archive_that_was_uploaded_is_read_by_its_descriptor(imports: Imports) -> None:
    blobs = Blobs()
    manifest = blobs.image(LAYERS)
    path = blobs.write_layout(imports.path / "layout", {"v1": manifest})
    files = [(str(each.relative_to(path)), each.read_bytes()) for each in sorted(path.rglob("*")) if each.is_file()]
    archive = imports.path / "archive.tar"
    archive.write_bytes(tar([member(name, data) for name, data in files]))
    archive.chmod(0o600)
    for each in sorted(path.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    path.rmdir()
    for reference in ("-", "oci:somewhere/app:v1", "oci-archive:app.tar", "./app.tar"):
        assert (await imports.run(reference, path=str(archive))).digest == digest(manifest)
    with pytest.raises(NoSuchImage, match="no tag 'v2'"):
        await imports.run("oci:app:v2", path=str(archive))
    with pytest.raises(BadImage, match="are uploaded"):
        await imports.run("oci:/etc")


async def test_of_an_image_that_is_not_wanted_no_layer_is_fetched(imports: Imports) -> None:
    one = script()
    with scripted_registry(one) as address:
        await imports.run(f"{address}/team/app:v1", is_wanted=False)
        assert one.count("/blobs") == 0


async def test_credentials_are_those_of_the_file_and_of_this_registry_only(imports: Imports) -> None:
    one = script()
    one.wants, one.accepted = "Basic", {"Basic dTpw"}
    config = imports.path / "config.json"
    with scripted_registry(one) as address:
        with pytest.raises(ImageAccessDenied):
            await imports.run(f"{address}/team/app:v1", docker_config=config)
        config.write_text(json.dumps({"auths": {address: {"auth": "dTpw"}}}))
        config.chmod(0o600)
        await imports.run(f"{address}/team/app:v1", docker_config=config)
        assert one.authorizations("/blobs") == {"Basic dTpw": 3}
        config.write_text("{")
        with pytest.raises(BadImage, match="malformed"):
            await imports.run(f"{address}/team/app:v1", docker_config=config)


@pytest.mark.parametrize(
    ("layers", "limits", "error", "words"),
    [
        ([tar([member("../x", b"")])], Limits(), BadImage, "layer 1 .* leaves its directory"),
        ([tar([member("x", bytes(3 << 20))])], Limits(max_bytes=1 << 20), ImageTooLarge, "more than 1 MB"),
        ([tar([member("var", b"")])], Limits(), BadImage, "var is a file"),
    ],
)
async def test_a_hostile_image_is_a_typed_error(
    imports: Imports, layers: list[bytes], limits: Limits, error: type[Exception], words: str
) -> None:
    with scripted_registry(script(layers)) as address, pytest.raises(error, match=words):
        await imports.run(f"{address}/team/app:v1", limits=limits)


async def test_an_import_contacts_other_services_of_the_host_only_if_they_are_configured(imports: Imports) -> None:
    one = script()
    other = Script(blobs=one.blobs)
    with scripted_registry(one) as address, scripted_registry(other) as storage:
        one.redirect = f"http://{storage}"
        with pytest.raises(
            BadImage, match=r"only spoken with over HTTPS; images\.insecure_registries names exceptions"
        ):
            await imports.run(f"{address}/team/app:v1")
        one.redirect = f"https://{storage}"
        with pytest.raises(BadImage, match=r"not a public address; images\.redirect_hosts names hosts"):
            await imports.run(f"{address}/team/app:v1")
        assert not other.requests
        one.redirect = f"http://{storage}"
        await imports.run(f"{address}/team/app:v1", insecure_registries=(storage,))
        assert other.count("/blobs") == 3


@case(
    "K29",
    "an import process of strangers sends an image with 4097 variables",
    expect="refused before the daemon uses it",
)
def test_a_message_with_a_configuration_over_the_limits_is_none() -> None:
    """As a process would send it that strangers have taken over; its own check is in `documents`."""

    def line(variables: int) -> bytes:
        config = ImageConfig(env=tuple(f"A{n}=1" for n in range(variables)))
        values = {"facts": ImageFacts(), "layers": 1, "size_bytes": 1, "metadata_chunks": 1, "notes": ()}
        return import_wire.encode(Imported(digest=f"sha256:{'0' * 64}", config=config, **values))  # type: ignore[arg-type]

    assert isinstance(import_wire.decode(line(MOST_CONFIG_TEXTS)), Imported)
    with pytest.raises(msgspec.ValidationError, match="4097 variables; the limit is 4096"):
        import_wire.decode(line(MOST_CONFIG_TEXTS + 1))


async def test_an_import_that_takes_too_long_ends_with_its_process(imports: Imports) -> None:
    one = script()
    one.answers["/manifests"] = [(503, {"Retry-After": "30"})] * 10
    with scripted_registry(one) as address, pytest.raises(RegistryUnavailable, match="import_timeout_s"):
        await imports.run(f"{address}/team/app:v1", deadline_s=3.0)


async def test_an_import_that_is_cancelled_leaves_nothing(imports: Imports) -> None:
    one = script()
    one.answers["/manifests"] = [(503, {"Retry-After": "30"})] * 10
    with scripted_registry(one) as address:
        running = asyncio.create_task(imports.run(f"{address}/team/app:v1"))
        async with asyncio.timeout(30):
            await asyncio.to_thread(one.begun.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_authorities_of_the_worker_are_trusted_besides_the_systems(imports: Imports, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    context, authority = certificate(tmp_path / "image")
    own = tmp_path / "config.json"
    own.write_bytes(authority.read_bytes())
    for path in (tmp_path / "image").iterdir():
        path.unlink()
    with scripted_registry(script(), tls=context) as address:
        with pytest.raises(RegistryUnavailable, match="is not valid"):
            await imports.run(f"{address}/team/app:v1")
        assert (await imports.run(f"{address}/team/app:v1", ca_file=own)).layers == 2


async def test_a_mirror_is_asked_first_and_the_registry_for_what_it_does_not_have(imports: Imports) -> None:
    origin, mirror = script(), script()
    with scripted_registry(origin) as address, scripted_registry(mirror) as other:
        mirrors = {address: other}
        assert (await imports.run(f"{address}/team/app:v1", mirrors=mirrors)).layers == 2
        assert not origin.requests and mirror.count("/v2/team/app/manifests/v1") == 1
        mirror.manifests.clear()
        assert (await imports.run(f"{address}/team/app:v1", mirrors=mirrors)).layers == 2
        assert origin.count("/v2/team/app/manifests/v1") == 1
        assert any(f"not from the mirror {other}" in line for line in imports.progress)
    with scripted_registry(script()) as address:
        mirrors = {address: other}  # which has ended
        assert (await imports.run(f"{address}/team/app:v1", mirrors=mirrors)).layers == 2
