"""Layouts and archives: what skopeo, umoci and docker write, choices among images, and damage."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import BadImage, NoSuchImage
from sockd.images.registry import decompression, documents
from sockd.images.registry.image import OciImage, Platform
from sockd.images.registry.limits import Limits
from sockd.images.registry.merge import apply_layers
from sockd.images.registry.reference import Reference
from sockd.images.registry.sources import open_source
from tests.images.registry.conftest import Images
from tests.support.cases import case
from tests.support.images.oci_images import Blobs, configuration, descriptor, digest, layout, member, needs, tar

LAYERS = [tar([member("etc/a", b"1")]), tar([member("etc/b", b"2"), member("etc/.wh.a", b"")])]
RUN: dict[str, Any] = {
    "Entrypoint": ["/bin/f"],
    "Cmd": ["x", "y"],
    "Env": ["PATH=/bin", "A=b=c"],
    "WorkingDir": "/app",
    "User": "1000:1000",
    "ExposedPorts": {"8080/tcp": {}},
    "Labels": {"a": "b"},
}


def resolved(reference: str, path: Path, platform: Platform | None = None) -> OciImage:
    source = open_source(Reference.parse(reference), str(path), platform=platform or Platform())
    try:
        return source.resolve()
    finally:
        source.close()


def test_a_layout_is_resolved_to_its_manifest_and_configuration(tmp_path: Path) -> None:
    blobs = Blobs()
    manifest = blobs.image(LAYERS, **RUN)
    path = blobs.write_layout(tmp_path / "layout", {"v1": manifest})
    image = resolved(f"oci:{path}:v1", tmp_path)
    assert image == resolved(str(path), tmp_path) == resolved(f"oci:{path}", tmp_path)
    assert image.digest == digest(manifest) and [layer.diff_id for layer in image.layers] == list(map(digest, LAYERS))
    config = image.config
    assert (config.entrypoint, config.cmd, config.env) == (("/bin/f",), ("x", "y"), ("PATH=/bin", "A=b=c"))
    assert (config.working_dir, config.user, config.exposed_ports) == ("/app", "1000:1000", ("8080/tcp",))
    assert (config.labels, config.os, config.architecture) == ({"a": "b"}, "linux", "amd64")


def test_a_tag_chooses_among_images_and_none_means_the_only_one_or_latest(tmp_path: Path) -> None:
    blobs = Blobs()
    old, new = blobs.image(LAYERS[:1]), blobs.image(LAYERS)
    path = blobs.write_layout(tmp_path / "one", {"old": old, "new": new})
    assert resolved(f"oci:{path}:old", tmp_path).digest == digest(old)
    with pytest.raises(BadImage, match="name one of its tags: new, old"):
        resolved(f"oci:{path}", tmp_path)
    with pytest.raises(NoSuchImage, match="no tag 'other'; it has new, old"):
        resolved(f"oci:{path}:other", tmp_path)
    path = blobs.write_layout(tmp_path / "two", {"old": old, "latest": new})
    assert resolved(f"oci:{path}", tmp_path).digest == digest(new)


def indexed(blobs: Blobs, *manifests: tuple[bytes, dict[str, Any] | None]) -> bytes:
    listed = [
        descriptor(data, documents.OCI_MANIFEST, **({"platform": platform} if platform else {}))
        for data, platform in manifests
    ]
    return blobs.keep(json.dumps({"schemaVersion": 2, "mediaType": documents.OCI_INDEX, "manifests": listed}).encode())


def test_an_index_leads_to_the_image_of_the_platform(tmp_path: Path) -> None:
    blobs = Blobs()
    ours, attestation = blobs.image(LAYERS), blobs.image([])
    platforms = [
        (attestation, {"os": "unknown", "architecture": "unknown"}),
        (attestation, {"os": "linux", "architecture": "arm64", "variant": "v8"}),
        (ours, {"os": "linux", "architecture": "amd64"}),
    ]
    path = blobs.write_layout(tmp_path / "layout", {"v1": indexed(blobs, *platforms)})
    assert resolved(f"oci:{path}", tmp_path).digest == digest(ours)
    with pytest.raises(BadImage, match=r"no image for linux/riscv64; it has linux/amd64, linux/arm64/v8; build it"):
        resolved(f"oci:{path}", tmp_path, Platform(architecture="riscv64"))
    with pytest.raises(BadImage, match="is for linux/amd64, not for linux/arm64/v8"):
        resolved(f"oci:{path}", tmp_path, Platform("linux", "arm64", "v8"))


@pytest.mark.parametrize(
    "variants", [["v3", "", "v2"], ["v3", "v1", "v2"], ["v3", "v2"], ["v2", "v10"], [""], ["v3"], ["odd", "v2"]]
)
def test_of_variants_the_one_that_most_machines_run_is_taken(tmp_path: Path, variants: list[str]) -> None:
    blobs = Blobs()
    images = {variant: blobs.image([*LAYERS, tar([member(f"of{variant}", b"")])]) for variant in variants}
    manifests = [
        (data, {"os": "linux", "architecture": "amd64", **({"variant": variant} if variant else {})})
        for variant, data in images.items()
    ]
    path = blobs.write_layout(tmp_path / "layout", {"v1": indexed(blobs, *manifests)})
    lowest = next(each for each in ("", "v1", "odd", "v2", "v3") if each in images)
    assert resolved(f"oci:{path}", tmp_path).digest == digest(images[lowest])
    if "v3" in images:
        assert resolved(f"oci:{path}", tmp_path, Platform(variant="v3")).digest == digest(images["v3"])


def test_indexes_of_indexes_end(tmp_path: Path) -> None:
    blobs = Blobs()
    data = blobs.image(LAYERS)
    for _ in range(6):
        data = indexed(blobs, (data, None))
    path = blobs.write_layout(tmp_path / "layout", {"v1": data})
    with pytest.raises(BadImage, match="too deep"):
        resolved(f"oci:{path}", tmp_path)


CONFIG = configuration(LAYERS)
MANIFEST = {
    "schemaVersion": 2,
    "config": descriptor(CONFIG, documents.OCI_CONFIG),
    "layers": [descriptor(layer, "application/vnd.oci.image.layer.v1.tar") for layer in LAYERS],
}


def with_layers(*kinds: str) -> dict[str, Any]:
    return {**MANIFEST, "layers": [{**MANIFEST["layers"][0], "mediaType": kind} for kind in kinds]}  # type: ignore[index]


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"schemaVersion": 1, "name": "x", "fsLayers": []}, "old manifest schema 1"),
        ({"schemaVersion": 2, "mediaType": documents.SCHEMA_1[1]}, "old manifest schema 1"),
        ({**MANIFEST, "manifests": []}, "a manifest and an index at once"),
        ({**MANIFEST, "rootfs": {"type": "layers", "diff_ids": []}}, "a manifest and a configuration at once"),
        ({"schemaVersion": 2}, "has no|is malformed|neither"),
        ([], "is malformed"),
        ("text", "is malformed"),
        ({**MANIFEST, "layers": "x"}, "is malformed"),
        ({**MANIFEST, "config": {"digest": "sha256:abc"}}, "not a digest"),
        (
            {**MANIFEST, "config": descriptor(CONFIG, "application/vnd.cncf.helm.config.v1+json")},
            "not a container image",
        ),
        (with_layers("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), "is a foreign layer"),
        (with_layers("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"), "is a foreign layer"),
        (with_layers("application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), "is encrypted"),
        (with_layers("application/vnd.cncf.helm.chart.content.v1.tar+gzip"), "is not a file system"),
        ({**MANIFEST, "layers": MANIFEST["layers"][:1]}, "has 1 layers, and its configuration 2"),  # type: ignore[index]
        ({**MANIFEST, "config": {**descriptor(CONFIG, ""), "digest": digest(b"other")}}, "has no 'blobs/sha256"),
    ],
)
def test_a_manifest_that_is_no_image_is_refused_with_the_reason(tmp_path: Path, manifest: Any, words: str) -> None:
    blobs = Blobs()
    for data in (CONFIG, *LAYERS):
        blobs.keep(data)
    path = blobs.write_layout(tmp_path / "layout", {"v1": blobs.keep(json.dumps(manifest).encode())})
    with pytest.raises(BadImage, match=words):
        resolved(f"oci:{path}", tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"{}", "malformed"),
        (b"[" * 100_000, "malformed"),
        (b'{"rootfs": {"diff_ids": []}, "config": {"Entrypoint": "text"}}', "malformed"),
        (b'{"rootfs": {"diff_ids": []}, "config": {"Env": ["A=\\u0000"]}}', "zero byte"),
        (b'{"rootfs": {"diff_ids": []}, "os": "windows", "architecture": "amd64"}', "is for windows/amd64"),
        (b'{"rootfs": {"diff_ids": ["x"]}}', "has 0 layers"),
        (b'{"rootfs": {"diff_ids": []}, "layers": []}', "is a manifest or an index at once"),
        (b'{"rootfs": {"diff_ids": []}, "manifests": null}', "is a manifest or an index at once"),
        (configuration([], Env=[f"A{n}=1" for n in range(200_000)]), "200000 variables; the limit is 4096"),
        (configuration([], Env=["A=" + "x" * 7_000_000]), "7000003 bytes of variables and words; the limit is 262144"),
        (configuration([], Cmd=["x"] * 5000), "5000 words; the limit is"),
        (configuration([], Labels={"a": "x" * 1_100_000}), "bytes of texts; the limit is 1048576"),
        (configuration([], Volumes={f"/{n}": {} for n in range(5000)}), "5000 ports and volumes; the limit is"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused_with_the_reason(tmp_path: Path, config: bytes, words: str) -> None:
    blobs = Blobs()
    manifest = {"schemaVersion": 2, "config": descriptor(blobs.keep(config), documents.OCI_CONFIG), "layers": []}
    path = blobs.write_layout(tmp_path / "layout", {"": blobs.keep(json.dumps(manifest).encode())})
    with pytest.raises(BadImage, match=words):
        resolved(f"oci:{path}", tmp_path)


def damaged(path: Path, name: str, data: bytes) -> None:
    (path / "blobs" / name.replace(":", "/")).write_bytes(data)


def test_each_blob_that_was_altered_is_refused(tmp_path: Path, images: Images) -> None:
    for number, what in enumerate(("manifest", "config", "layer")):
        blobs = Blobs()
        manifest = blobs.image(LAYERS)
        path = blobs.write_layout(tmp_path / f"layout-{number}", {"": manifest})
        document = json.loads(manifest)
        name = {"manifest": digest(manifest), "config": document["config"]["digest"]}.get(what)
        name = name or document["layers"][1]["digest"]
        data = blobs[name]
        for changed in (data[:-1], data + b" ", data[:20] + bytes([data[20] ^ 1]) + data[21:]):
            damaged(path, name, changed)
            with pytest.raises(BadImage, match=r"altered|ended after|has more than|damaged"):
                images.unpacked(f"oci:{path}")


def test_a_layer_that_is_not_what_the_configuration_says_is_refused(tmp_path: Path, images: Images) -> None:
    blobs = Blobs()
    stored = blobs.keep(gzip.compress(LAYERS[0]))
    manifest = {
        "schemaVersion": 2,
        "config": descriptor(blobs.keep(configuration([LAYERS[1]])), documents.OCI_CONFIG),
        "layers": [descriptor(stored, "application/vnd.oci.image.layer.v1.tar+gzip")],
    }
    path = blobs.write_layout(tmp_path / "layout", {"": blobs.keep(json.dumps(manifest).encode())})
    with pytest.raises(BadImage, match="does not have the digest in the image's configuration"):
        images.unpacked(f"oci:{path}")


def stored_as(images: Images, stored: bytes, layer: bytes) -> Any:
    blobs = Blobs()
    manifest = {
        "schemaVersion": 2,
        "config": descriptor(blobs.keep(configuration([layer])), documents.OCI_CONFIG),
        "layers": [descriptor(blobs.keep(stored), "application/vnd.oci.image.layer.v1.tar+gzip")],
    }
    path = images.path / digest(stored)[7:19]
    blobs.write_layout(path, {"": blobs.keep(json.dumps(manifest).encode())})
    return apply_layers(images.unpacked(f"oci:{path}"), Limits()).tree


@pytest.fixture(params=["zlib", "isal.isal_zlib"])
def inflating(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the modules that inflate."""
    monkeypatch.setattr(decompression, "inflate", pytest.importorskip(request.param))


@pytest.mark.usefixtures("inflating")
def test_a_layer_may_be_plain_gzip_in_members_or_zstd_in_frames(images: Images) -> None:
    zstandard = pytest.importorskip("zstandard")
    layer = tar([member("f", bytes(range(256)) * 5000)])
    half = len(layer) // 2
    frames = zstandard.compress(layer[:half]) + zstandard.compress(layer[half:])
    members = gzip.compress(layer[:half]) + gzip.compress(layer[half:]) + bytes(1000)
    for stored in (layer, gzip.compress(layer), members, frames):
        assert stored_as(images, stored, layer)["f"].size == 1_280_000


@pytest.mark.parametrize("magic", [b"BZh91AY", b"\xfd7zXZ\0", b"\x04\x22\x4d\x18"])
def test_a_layer_compressed_by_something_else_is_refused(images: Images, magic: bytes) -> None:
    with pytest.raises(BadImage, match="compressed by"):
        stored_as(images, magic + b"data", b"")


@pytest.mark.usefixtures("inflating")
def test_compressed_data_that_is_damaged_or_ends_early_is_refused(images: Images) -> None:
    zstandard = pytest.importorskip("zstandard")
    layer = tar([member("f", bytes(range(256)) * 50)])
    for whole in (gzip.compress(layer), zstandard.compress(layer)):
        for stored in (whole[:-5], whole[:60] + b"\xff\xff" + whole[62:]):
            with pytest.raises(BadImage):
                stored_as(images, stored, layer)


def archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    path.write_bytes(tar(members))
    return path


def docker_archive(path: Path, *, names: list[str] | None = None) -> Path:
    """As docker before version 25 wrote it."""
    config = configuration(LAYERS, **RUN)
    listed = [
        {
            "Config": f"{digest(config)[7:]}.json",
            "RepoTags": ["app:v1"] if names is None else names,
            "Layers": ["aa/layer.tar", "bb/layer.tar"],
        }
    ]
    linked = tarfile.TarInfo("bb/layer.tar")
    linked.type, linked.linkname = tarfile.SYMTYPE, "../cc/layer.tar"
    return archive(
        path,
        [
            member("aa/"),
            member("aa/layer.tar", LAYERS[0]),
            (linked, b""),
            member("cc/layer.tar", LAYERS[1]),
            member(f"{digest(config)[7:]}.json", config),
            member("manifest.json", json.dumps(listed).encode()),
        ],
    )


def test_a_docker_archive_is_read_whole_or_compressed(tmp_path: Path, images: Images) -> None:
    path = docker_archive(tmp_path / "saved.tar")
    compressed = tmp_path / "saved.tar.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    for reference in (str(path), f"docker-archive:{path}", f"docker-archive:{path}:app:v1", str(compressed)):
        image = resolved(reference, tmp_path)
        assert image.config.entrypoint == ("/bin/f",) and image.digest == digest(configuration(LAYERS, **RUN))
        assert set(apply_layers(images.unpacked(reference), Limits()).tree) == {"", "etc", "etc/b"}
    with pytest.raises(NoSuchImage, match="no image 'other:latest'; it has app:v1"):
        resolved(f"docker-archive:{path}:other", tmp_path)


def test_a_path_that_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    archive(tmp_path / "other.tar", [member("x", b"")])
    (tmp_path / "text.tar").write_text("text" * 1000)
    (tmp_path / "loop").symlink_to("loop")
    for reference, error in [
        (tmp_path / "nothing.tar", "there is no file"),
        (tmp_path / "empty", "has no 'oci-layout'"),
        (tmp_path / "other.tar", "neither an OCI archive"),
        (tmp_path / "text.tar", "damaged|malformed"),
        (f"oci:{tmp_path}/other.tar", "is not a directory"),
        (f"oci-archive:{tmp_path}/empty", "is a directory"),
        ("-", "standard input"),
        ("/dev/null", "neither a file nor a directory"),
    ]:
        with pytest.raises(BadImage, match=error):
            resolved(str(reference), tmp_path)


def test_no_link_of_a_layout_is_followed(tmp_path: Path) -> None:
    path = layout(tmp_path / "layout", LAYERS)
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (path / "index.json").unlink()
    (path / "index.json").symlink_to(secret)
    with pytest.raises(BadImage, match="cannot be read"):
        resolved(f"oci:{path}", tmp_path)


@needs("skopeo")
@pytest.mark.parametrize("form", ["oci:{}/copy:v1", "oci-archive:{}/copy.tar:v1", "docker-archive:{}/copy.tar:app:v1"])
def test_what_skopeo_writes_is_the_image_that_it_was_given(tmp_path: Path, images: Images, form: str) -> None:
    source = layout(tmp_path / "layout", LAYERS, "v1", **RUN)
    copy = form.format(tmp_path)
    subprocess.run(["skopeo", "copy", "--insecure-policy", "-q", f"oci:{source}:v1", copy], check=True)
    expected, found = resolved(f"oci:{source}", tmp_path), resolved(copy, tmp_path)
    assert found.config == expected.config
    assert [layer.diff_id for layer in found.layers] == [layer.diff_id for layer in expected.layers]
    assert set(apply_layers(images.unpacked(copy), Limits()).tree) == {"", "etc", "etc/b"}


@needs("skopeo")
def test_zstd_layers_of_skopeo_are_read(tmp_path: Path, images: Images) -> None:
    pytest.importorskip("zstandard")
    source = layout(tmp_path / "layout", LAYERS, "v1", compress=False)
    copy = f"oci:{tmp_path}/copy:v1"
    command = ["skopeo", "copy", "--insecure-policy", "-q", "--dest-compress-format", "zstd", f"oci:{source}:v1", copy]
    subprocess.run(command, check=True)
    assert set(apply_layers(images.unpacked(copy), Limits()).tree) == {"", "etc", "etc/b"}


def test_an_archive_with_endless_members_is_refused(tmp_path: Path) -> None:
    (tmp_path / "many.tar").write_bytes(tarfile.TarInfo("same").tobuf() * 20_001)
    with pytest.raises(BadImage, match="more than 20000 members"):
        resolved(str(tmp_path / "many.tar"), tmp_path)


@case("K29", "one document is a manifest, and a configuration of another image", expect="refused in both places")
def test_a_digest_is_not_the_manifest_of_one_image_and_the_configuration_of_another(tmp_path: Path) -> None:
    """In a registry the digest would name the one image, and in a docker archive the other."""
    both = {**MANIFEST, "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in LAYERS[:1]]}}
    data = json.dumps(both).encode()
    archive = tmp_path / "archive.tar"
    manifest = [{"Config": "config.json", "Layers": ["layer.tar"], "RepoTags": ["app:v1"]}]
    members = [("manifest.json", json.dumps(manifest).encode()), ("config.json", data), ("layer.tar", LAYERS[0])]
    archive.write_bytes(tar([member(name, each) for name, each in members]))
    with pytest.raises(BadImage, match="is a manifest or an index at once"):
        resolved(f"docker-archive:{archive}", tmp_path)
    blobs = Blobs()
    for each in (CONFIG, *LAYERS):
        blobs.keep(each)
    path = blobs.write_layout(tmp_path / "layout", {"v1": blobs.keep(data)})
    with pytest.raises(BadImage, match="is a manifest and a configuration at once"):
        resolved(f"oci:{path}", tmp_path)
