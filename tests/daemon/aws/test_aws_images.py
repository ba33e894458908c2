"""Functions in images by AWS's API: unmodified boto3, and a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sockd.images.registry import documents
from tests.daemon.aws_client import KEYS, ROLE
from tests.daemon.images.test_images import CONFIG, app
from tests.daemon.running import RunningDaemon, zipped
from tests.support.images import docker_registry as registries
from tests.support.images.docker_registry import Registry, docker_registry
from tests.support.images.image_layouts import Files, made, python_files
from tests.support.images.oci_images import Blobs, digest, needs

pytestmark = [pytest.mark.root, needs(registries.PROGRAM)]


@pytest.fixture(scope="module")
def config() -> str:
    return KEYS


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with docker_registry() as registry:
        yield registry


@pytest.fixture(scope="module")
def python() -> bytes:
    return python_files().tar()


def push(registry: Registry, name: str, layers: list[Files | bytes], **changes: Any) -> str:
    """Store an image; its digest."""
    blobs = Blobs()
    manifest = made(blobs, layers, CONFIG | changes)
    registry.push(name, blobs, manifest, documents.OCI_MANIFEST)
    return digest(manifest)


def invoke(client: Any, name: str, qualifier: str = "$LATEST") -> Any:
    answer = client.invoke(FunctionName=name, Payload=b'{"n": 1}', Qualifier=qualifier)
    return json.loads(answer["Payload"].read())


def test_a_function_is_created_updated_and_published_from_images(
    client: Any, registry: Registry, python: bytes
) -> None:
    first = push(registry, "team/app:1", [python, app("1")])
    uri = f"{registry.address}/team/app:1"
    created = client.create_function(
        FunctionName="imaged", Role=ROLE, PackageType="Image", Code={"ImageUri": uri}, Timeout=10, Publish=True
    )
    assert created["PackageType"] == "Image" and created["CodeSha256"] == first.removeprefix("sha256:")
    assert not {"Runtime", "Handler"} & created.keys()
    reported = client.get_function(FunctionName="imaged")
    assert reported["Code"]["ImageUri"] == uri
    assert reported["Code"]["ResolvedImageUri"] == f"{registry.address}/team/app@{first}"
    assert (invoke(client, "imaged")["version"], invoke(client, "imaged")["argv"][1:]) == ("1", ["module.handler"])

    second = push(registry, "team/app:1", [python, app("2")])  # the tag moves
    assert invoke(client, "imaged")["version"] == "1"
    updated = client.update_function_code(FunctionName="imaged", ImageUri=uri)
    assert updated["CodeSha256"] == second.removeprefix("sha256:") and updated["Timeout"] == 10
    assert (invoke(client, "imaged")["version"], invoke(client, "imaged", "1")["version"]) == ("2", "1")

    replaced = {"Command": ["other.handler"], "WorkingDirectory": "/opt"}
    changed = client.update_function_configuration(FunctionName="imaged", ImageConfig=replaced)
    assert changed["ImageConfigResponse"]["ImageConfig"] == replaced
    answer = invoke(client, "imaged")
    assert (answer["argv"][1:], answer["cwd"]) == (["other.handler"], "/opt")
    assert "ImageConfigResponse" in client.update_function_code(FunctionName="imaged", ImageUri=uri)
    reset = client.update_function_configuration(FunctionName="imaged", ImageConfig={})
    assert "ImageConfigResponse" not in reset and invoke(client, "imaged")["cwd"] == "/app"


def refused(call: Any, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_an_image_is_listed_with_the_references_of_all_its_functions(
    client: Any, registry: Registry, daemon: RunningDaemon
) -> None:
    files = Files(plain={"listed": ""})
    same = {push(registry, name, [files]) for name in ("listed:1", "listed:2", "another:1")}
    names = [f"{registry.address}/{name}" for name in ("listed:1", "listed:2", "another:1")]
    for number, name in enumerate(names):
        code = {"ImageUri": name}
        client.create_function(FunctionName=f"listed-{number}", Role=ROLE, PackageType="Image", Code=code)
    (row,) = [row for row in daemon.manage("GET", "/images").json if row["digest"] in same]
    assert row["references"] == [names[0], names[2], names[1]], "the first is that of the import"
    assert row["functions"] == ["listed-0", "listed-1", "listed-2"]


def test_what_cannot_be_is_refused_as_by_aws(client: Any, registry: Registry) -> None:
    image = {"FunctionName": "refused", "Role": ROLE, "PackageType": "Image"}
    code, words = refused(client.create_function, **image, Code={"ImageUri": f"{registry.address}/nothing:1"})
    assert code == "InvalidParameterValueException" and "nothing:1" in words
    code, words = refused(client.create_function, **image, Code={"ZipFile": zipped({"a.py": ""})})
    assert code == "InvalidParameterValueException" and "ImageUri" in words
    code, words = refused(client.create_function, **image, Code={"ImageUri": "x"}, Runtime="python3.12", Handler="a.b")
    assert "Runtime and Handler" in words
    small = push(registry, "small:1", [Files(plain={"a": "b"})])
    assert small
    client.create_function(**image, Code={"ImageUri": f"{registry.address}/small:1"})
    code, words = refused(client.update_function_code, FunctionName="refused", ZipFile=zipped({"a.py": ""}))
    assert code == "InvalidParameterValueException" and "packageType Image" in words
    code, words = refused(client.update_function_configuration, FunctionName="refused", Handler="a.b")
    assert code == "InvalidParameterValueException" and "Runtime and Handler" in words
    other = push(registry, "other:1", [Files(plain={"a": "b"})], Entrypoint=[], Cmd=[])
    assert other
    code, words = refused(client.update_function_code, FunctionName="refused", ImageUri=f"{registry.address}/other:1")
    assert code == "InvalidParameterValueException" and "ENTRYPOINT" in words
