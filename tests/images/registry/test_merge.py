"""Layers, one over the other: whiteouts, links, replacements, what is left out, and what is refused."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sockd.base.errors import BadImage, ImageTooLarge
from sockd.base.file_tree import FileTree
from sockd.images.registry.limits import Limits
from sockd.images.registry.merge import apply_layers, unreadable_note
from sockd.images.registry.unpacked import UnpackedLayers
from tests.images.registry.conftest import Images
from tests.support.examples import examples
from tests.support.images.oci_images import EPOCH, link, member, needs, tar


def shown(tree: FileTree, layers: UnpackedLayers) -> dict[str, str]:
    """Paths with their data, target or type; without the root."""
    described = {}
    for path, inode in tree.items():
        if stat.S_ISREG(inode.mode):
            described[path] = layers.read(inode.layer, inode.offset, inode.size).decode() if inode.size else ""
        else:
            described[path] = f"-> {inode.target}" if stat.S_ISLNK(inode.mode) else "/"
    del described[""]
    return described


def merged(images: Images, *layers: list[tuple[tarfile.TarInfo, bytes]]) -> dict[str, str]:
    result, unpacked = images.merged([tar(each) for each in layers])
    return shown(result.tree, unpacked)


BASE = [member("a/"), member("a/x", b"1"), member("a/y", b"2"), member("b/c/d", b"3"), link("l", "a")]


def test_an_upper_layer_adds_and_replaces(images: Images) -> None:
    assert merged(images, BASE, [member("a/x", b"new"), member("e", b"")]) == {
        "a": "/",
        "a/x": "new",
        "a/y": "2",
        "b": "/",
        "b/c": "/",
        "b/c/d": "3",
        "l": "-> a",
        "e": "",
    }


@pytest.mark.parametrize(
    ("upper", "gone", "there"),
    [
        ([member("a/.wh.x", b"")], ["a/x"], {"a/y": "2"}),
        ([member(".wh.a", b"")], ["a", "a/x", "a/y"], {"b/c/d": "3"}),
        ([member(".wh.l", b"")], ["l"], {"a/x": "1"}),
        ([member("a/.wh..wh..opq", b"")], ["a/x", "a/y"], {"a": "/"}),
        ([member("a/"), member("a/z", b"z"), member("a/.wh..wh..opq", b"")], ["a/x", "a/y"], {"a/z": "z"}),
        ([member("a/x", b"new"), member("a/.wh.x", b"")], [], {"a/x": "new"}),
        ([member(".wh.b", b""), member("b/c/", None)], ["b/c/d"], {"b/c": "/"}),
        ([member(".wh..wh..opq", b""), member("only", b"1")], ["a", "b", "l"], {"only": "1"}),
        ([member(".wh.nothing", b""), member("x/y/.wh.z", b"")], ["x"], {"a/x": "1"}),
        ([member("l/.wh.x", b"")], [], {"a/x": "1", "l": "-> a"}),
        ([member("a", b"file")], ["a/x", "a/y"], {"a": "file"}),
        ([link("b", "a")], ["b/c", "b/c/d"], {"b": "-> a"}),
        ([member("a/x/"), member("a/x/in", b"i")], [], {"a/x": "/", "a/x/in": "i"}),
        ([member("l/new", b"n")], [], {"l": "/", "l/new": "n", "a/x": "1"}),
        ([member("./a/x", b"dot"), member("/a/y", b"slash")], [], {"a/x": "dot", "a/y": "slash"}),
        ([link("hard", "a/x", is_hard=True), member(".wh.l", b"")], ["l"], {"hard": "1", "a/x": "1"}),
        ([member("p/q", b"1"), member("p", b"2")], ["p/q"], {"p": "2"}),
        ([member("p", b"1"), member("p", b"2")], [], {"p": "2"}),
        ([member(".wh..wh.plnk/", None), member(".wh..wh.aufs", b"")], [".wh..wh.plnk", ".wh..wh.aufs"], {}),
    ],
)
def test_layers_are_applied_as_the_specification_says(
    images: Images, upper: list[tuple[tarfile.TarInfo, bytes]], gone: list[str], there: dict[str, str]
) -> None:
    found = merged(images, BASE, upper)
    assert not set(gone) & set(found) and there.items() <= found.items()
    assert not [path for path in found if ".wh." in path]
    assert all(os.path.dirname(path) in {"", *found} for path in found)


def test_hard_links_share_their_inode_until_a_layer_replaces_one(images: Images) -> None:
    links = [link("l1", "f", is_hard=True), link("l2", "./l1", is_hard=True)]
    tree = images.merged([tar([member("f", b"data"), *links])])[0].tree
    assert tree["f"] is tree["l1"] is tree["l2"]
    over = images.merged([tar([member("f", b"data"), *links]), tar([member("f", b"other")])])[0].tree
    assert over["l1"] is over["l2"] is not over["f"]


def test_metadata_is_that_of_the_member_and_of_implied_directories_always_the_same(images: Images) -> None:
    fields = {"uid": 1234, "gid": 70_000, "mode": 0o640, "pax_headers": {"mtime": "1700000000.123456789"}}
    tree = images.merged([tar([member("d/f", b"x", **fields)])])[0].tree
    file, implied = tree["d/f"], tree["d"]
    assert (file.mode, file.uid, file.gid) == (stat.S_IFREG | 0o640, 1234, 70_000)
    assert (file.mtime_s, file.mtime_ns) == (EPOCH, 123_456_789)
    assert (implied.mode, implied.uid, implied.mtime_s) == (stat.S_IFDIR | 0o755, 0, 0)


def test_what_a_sandbox_cannot_use_is_left_out_with_a_note(images: Images) -> None:
    result = images.merged(
        [
            tar([member("dev/null", b"lower")]),
            tar(
                [
                    member("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
                    member("bin/su", b"su", mode=0o6755),
                    member("shared/", None, mode=0o2755),
                    member("tmp/", None, mode=0o1777),
                    member("bin/ping", b"p", pax_headers={"SCHILY.xattr.security.capability": "\x01"}),
                    member("with", b"p", pax_headers={"SCHILY.xattr.user.note": "kept"}),
                    member("fifo", type=tarfile.FIFOTYPE),
                ]
            ),
        ]
    )[0]
    tree = result.tree
    assert "dev/null" not in tree and tree["bin/su"].mode & 0o7777 == 0o755
    assert (tree["shared"].mode & 0o7777, tree["tmp"].mode & 0o7777) == (0o2755, 0o1777)
    assert tree["bin/ping"].xattrs == {} and tree["with"].xattrs == {"user.note": b"kept"}
    assert stat.S_ISFIFO(tree["fifo"].mode)
    assert [note.split(":")[0] for note in result.notes] == [
        "device nodes are left out",
        "set-user-ID and set-group-ID bits are cleared",
        "the extended attribute security.capability is left out",
    ]
    assert "'bin/su'" in result.notes[1]


def test_files_that_neither_owner_nor_others_may_read_are_counted_as_they_end_up(images: Images) -> None:
    below = [member("key", b"k", mode=0o600), member("etc/shadow", b"s", mode=0o640), member("own/", None, mode=0o700)]
    above = [member("key", b"k", mode=0o644), member("new", b"n", mode=0o600), member("gone", b"n", mode=0o600)]
    above += [member("of-app", b"a", mode=0o640, uid=7, gid=8), member("not-of-app", b"a", mode=0o044, uid=7, gid=8)]
    whiteouts = [member(".wh.gone", b"")]
    tree = images.merged([tar(below), tar(above), tar(whiteouts)])[0].tree
    words = "files that functions cannot read, as neither USER nor everybody may: "
    assert unreadable_note(tree, 7, 0) == f"{words}2 ('new', 'not-of-app')"
    assert unreadable_note(tree, 0, 8) == ""
    assert unreadable_note(tree, 0, 0) == f"{words}1 ('of-app')"


def test_names_that_are_not_utf_8_or_very_long_survive(images: Images) -> None:
    name = os.fsdecode(b"d/\xff\xfe-" + b"n" * 200)
    long = "/".join(["part" * 20] * 12)
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        tree = images.merged([tar([member(name, b"1"), member(long, b"2"), link("s", long)], format)])[0].tree
        assert {name, long} <= tree.keys() and tree["s"].target == long


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ([link("lib", "usr/lib"), member("lib/x.so", b"x")], "usr/lib/x.so"),
        ([link("lib", "/usr/lib"), member("usr/lib/", None), member("lib/x.so", b"x")], "usr/lib/x.so"),
        ([link("l", "/etc"), member("l/passwd", b"x")], "etc/passwd"),
        ([link("l", "../../../etc"), member("l/passwd", b"x")], "etc/passwd"),
        ([member("a/b/", None), link("a/b/l", "../../../c"), member("a/b/l/f", b"x")], "c/f"),
        ([link("a", "b"), link("b", "./c//d"), member("a/f", b"x")], "c/d/f"),
        ([link("a", "."), member("a/a/f", b"x")], "f"),
        ([link("a", "/.."), member("a/f", b"x")], "f"),
        ([member("d/f", b"x"), link("s", "d"), link("d/h", "s/f", is_hard=True)], "d/h"),
        ([member("d/f", b"x"), link("s", "/d"), link("s/h", "/s/../s/f", is_hard=True)], None),
        ([link("below", "elsewhere"), member("below/f", b"x")], "elsewhere/f"),
        ([member("below/f", b"x")], "below/f"),
    ],
)
def test_a_member_below_a_link_of_its_layer_is_where_that_leads_inside_the_root(
    images: Images, members: list[tuple[tarfile.TarInfo, bytes]], path: str | None
) -> None:
    """As containerd and podman extract it. A link of a lower layer, `below`, is hidden by the directory."""
    layers = [tar([link("below", "of-a-lower-layer"), member("of-a-lower-layer/", None)]), tar(members)]
    if path is None:
        with pytest.raises(BadImage, match="leaves its directory"):
            images.merged(layers)
        return
    merged, unpacked = images.merged(layers)
    inode = merged.tree[path]
    assert unpacked.read(inode.layer, inode.offset, inode.size) == b"x"
    assert "of-a-lower-layer/f" not in merged.tree


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("../x", b"")], "leaves its directory"),
        ([member("a/../../x", b"")], "leaves its directory"),
        ([member("a/../b", b"")], "leaves its directory"),
        ([member("..", type=tarfile.DIRTYPE)], "leaves its directory"),
        ([member("/../x", b"")], "leaves its directory"),
        ([link("l", "l"), member("l/x", b"")], "below more than 40 symbolic links"),
        ([link("a", "b"), link("b", "a/c"), member("a/x", b"")], "below more than 40 symbolic links"),
        ([link("l", "f"), member("f", b""), member("l/x", b"")], "below a file of the same layer"),
        ([link("l", "n" * 256), member("l/x", b"")], "no file system holds"),
        ([link("l", "/".join(["n"] * 300)), member("l/x", b"")], "more than 255 directories"),
        ([link("s", "s"), link("h", "s/f", is_hard=True)], "below more than 40 symbolic links"),
        ([member("f", b""), member("f/x", b"")], "below a file of the same layer"),
        ([link("h", "nothing", is_hard=True)], "which is not there"),
        ([link("h", "../../etc/shadow", is_hard=True)], "leaves its directory"),
        ([link("h", "h", is_hard=True)], "which is not there"),
        ([link("h", "i", is_hard=True), link("i", "h", is_hard=True)], "which is not there"),
        ([member("d/"), link("h", "d", is_hard=True)], "hard link to the directory"),
        ([link("s", "d"), member("d/f", b""), link("h", "s/g", is_hard=True)], "which is not there"),
        ([member("n" * 256, b"")], "no file system holds"),
        ([member("/".join(["n"] * 300), b"")], "300 parts"),
        ([member("/".join(["n" * 200] * 30), b"")], "the limit is 4095"),
        ([member("d/.wh...", b"")], "names no file"),
        ([member("d/.wh.", b"")], "names no file"),
        ([member(".", b"")], "path of the root"),
        ([link("s", "t" * 5000)], "target of 5000 bytes"),
        ([member("u", b"", uid=(1 << 32) - 1)], "user or group"),
    ],
)
def test_a_hostile_member_is_refused_by_an_error_that_names_layer_and_member(
    images: Images, members: list[tuple[tarfile.TarInfo, bytes]], words: str
) -> None:
    with pytest.raises(BadImage, match=words) as error:
        images.merged([tar([member("fine", b"")]), tar(members)])
    assert error.value.message.startswith("layer 2 (sha256:")


@pytest.mark.parametrize(
    ("limits", "layer", "words"),
    [
        (Limits(max_files=10), [member(f"f{number}", b"") for number in range(11)], "more than 10 files"),
        (Limits(max_files=10), [member("/".join("abcdefghijk"), b"")], "more than 10 files"),
        (Limits(max_files=10), [member("f", b""), *[link("h", "f", is_hard=True)] * 11], "more than 10 files"),
        (Limits(max_bytes=1 << 20), [member("f", bytes(2 << 20))], "more than 1 MB uncompressed"),
        (Limits(max_metadata_bytes=1 << 20), [member(f"{n:0200}" * 1, b"") for n in range(6000)], "exceed 1 MB"),
        (Limits(max_header_bytes=10_000), [member("f", b"", pax_headers={"x": "y" * 20_000})], "extended header"),
    ],
)
def test_an_image_over_a_limit_is_refused_by_an_error_that_names_the_limit(
    images: Images, limits: Limits, layer: list[tuple[tarfile.TarInfo, bytes]], words: str
) -> None:
    with pytest.raises(ImageTooLarge, match=words):
        images.merged([tar(layer)], limits)


def test_a_layer_that_expands_too_much_is_refused(images: Images) -> None:
    with pytest.raises(ImageTooLarge, match="20 times its compressed size"):
        images.merged([tar([member("zeros", bytes(100 << 20))])], Limits(max_ratio=20))


def test_too_many_layers_are_refused(images: Images) -> None:
    with pytest.raises(BadImage, match="has 3 layers; the limit is 2"):
        images.merged([tar([]), tar([]), tar([])], Limits(max_layers=2))


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
KINDS = st.sampled_from(["file", "directory", "link", "whiteout", "opaque", "hard"])


@st.composite
def layer_members(draw: st.DrawFn) -> list[tuple[str, str]]:
    return draw(st.lists(st.tuples(KINDS, PATHS), max_size=8))


def as_tar(members: list[tuple[str, str]], mark: str) -> bytes:
    made = []
    for number, (kind, path) in enumerate(members):
        parent, _, name = path.rpartition("/")
        prefix = f"{parent}/" if parent else ""
        match kind:
            case "file":
                made.append(member(path, f"{mark}{number}".encode()))
            case "directory":
                made.append(member(f"{path}/"))
            case "link":
                made.append(link(path, f"{mark}{number}"))
            case "whiteout":
                made.append(member(f"{prefix}.wh.{name}", b""))
            case "opaque":
                made.append(member(f"{path}/.wh..wh..opq", b""))
            case "hard":
                made.append(link(path, "a", is_hard=True))
    return tar(made)


def modelled(layers: list[list[tuple[str, str]]]) -> dict[str, str] | None:
    """The specification in the plainest form: paths and what is there. None: it is to be refused."""
    files: dict[str, str] = {}
    for level, layer in enumerate(layers):
        mark = "xyz"[level]
        lower = dict(files)
        for kind, path in layer:
            # Of a lower file that is no directory, nothing is below.
            if kind in ("whiteout", "opaque"):
                parents = [path] if kind == "opaque" else []
                parents += ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]
                if all(lower.get(parent) == "/" for parent in parents):
                    for each in list(files):
                        if each.startswith(f"{path}/") or (kind == "whiteout" and each == path):
                            del files[each]
        own: set[str] = set()
        for number, (kind, path) in enumerate(layer):
            if kind in ("whiteout", "opaque"):
                continue
            *parents, name = path.split("/")
            place = ""
            for part in parents:
                parent = place + part
                if parent in own and files[parent].startswith("-> "):
                    parent = place + files[parent].removeprefix("-> ")
                if files.get(parent) != "/":
                    if parent in own:
                        return None
                    files[parent] = "/"
                    own.add(parent)
                place = f"{parent}/"
            path = place + name
            if kind == "hard":
                if files.get("a", "/") == "/":
                    return None
                if path == "a":
                    continue
                value = files["a"]
            else:
                value = {"file": f"{mark}{number}", "directory": "/", "link": f"-> {mark}{number}"}[kind]
            if value != "/":
                for each in [each for each in files if each.startswith(f"{path}/")]:
                    del files[each]
            files[path] = value
            own.add(path)
    return files


@contextmanager
def temporary_images() -> Iterator[Images]:
    """For tests with many examples, which share no fixture."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        yield Images(Path(directory), stack)


@settings(max_examples=examples(60))
@given(st.lists(layer_members(), min_size=1, max_size=3))
def test_any_layers_give_the_tree_of_the_model(layers: list[list[tuple[str, str]]]) -> None:
    expected = modelled(layers)
    found: dict[str, str] | None = None
    with temporary_images() as images:
        try:
            result, unpacked = images.merged([as_tar(layer, "xyz"[level]) for level, layer in enumerate(layers)])
            found = shown(result.tree, unpacked)
        except BadImage:
            assert expected is None
    assert found == expected


def tree_on_disk(root: Path) -> dict[str, tuple[str, int, int, int, int]]:
    """Paths with what is there, mode, owner, mtime."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            about = os.lstat(path)
            if stat.S_ISLNK(about.st_mode):
                what = f"-> {os.readlink(path)}"
            else:
                what = "/" if stat.S_ISDIR(about.st_mode) else Path(path).read_bytes().decode()
            mode = 0o777 if stat.S_ISLNK(about.st_mode) else about.st_mode & 0o7777
            found[os.path.relpath(path, root)] = (what, mode, about.st_uid, about.st_gid, int(about.st_mtime))
    return found


def tree_in_memory(tree: FileTree, layers: UnpackedLayers) -> dict[str, tuple[str, int, int, int, int]]:
    """The same of a FileTree."""
    texts = shown(tree, layers)
    return {
        path: (
            texts[path],
            0o777 if stat.S_ISLNK(inode.mode) else inode.mode & 0o7777,
            inode.uid,
            inode.gid,
            inode.mtime_s,
        )
        for path, inode in tree.items()
        if path
    }


@st.composite
def changed_trees(draw: st.DrawFn) -> list[dict[str, str]]:
    """Trees, one after the other, as a build makes them: paths with data, a target or a directory."""
    trees = []
    for _ in range(draw(st.integers(1, 3))):
        tree: dict[str, str] = {}
        for path in draw(st.lists(PATHS, max_size=8)):
            parts = path.split("/")
            if any(tree.get("/".join(parts[:depth]), "/") != "/" for depth in range(1, len(parts))):
                continue
            if path in tree:
                continue
            for depth in range(1, len(parts)):
                tree["/".join(parts[:depth])] = "/"
            tree[path] = draw(st.sampled_from(["/", "-> nowhere", "one", "two"]))
        trees.append(tree)
    return trees


def write_tree(root: Path, tree: dict[str, str]) -> None:
    for path in sorted(tree):
        what = tree[path]
        if what == "/":
            (root / path).mkdir(exist_ok=True)
        elif what.startswith("-> "):
            (root / path).symlink_to(what.removeprefix("-> "))
        else:
            (root / path).write_text(what)


@pytest.mark.root
@needs("umoci")
@settings(max_examples=examples(12), phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(changed_trees())
def test_layers_that_umoci_made_of_changes_are_read_as_umoci_reads_them(trees: list[dict[str, str]]) -> None:
    with temporary_images() as images:
        layout, image = images.path / "layout", f"{images.path}/layout:latest"
        run("umoci", "init", "--layout", str(layout))
        run("umoci", "new", "--image", image)
        for number, tree in enumerate(trees):
            bundle = images.path / f"bundle-{number}"
            run("umoci", "unpack", "--image", image, str(bundle))
            for path in (bundle / "rootfs").iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            write_tree(bundle / "rootfs", tree)
            run("umoci", "repack", "--image", image, str(bundle))
        run("umoci", "unpack", "--image", image, str(images.path / "read"))
        unpacked = images.unpacked(f"oci:{layout}")
        found = tree_in_memory(apply_layers(unpacked, Limits()).tree, unpacked)
        assert found == tree_on_disk(images.path / "read" / "rootfs")
        assert {path: values[0] for path, values in found.items()} == trees[-1]


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
