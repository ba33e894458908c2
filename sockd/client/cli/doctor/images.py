"""Whether this host has what functions from container images need: EROFS on files, and FUSE to read images on demand. A worker
runs without them.
"""

from __future__ import annotations

from pathlib import Path

from sockd.client.cli.doctor.checks import Check, probed
from sockd.client.cli.doctor.probes import NO_RESEND
from sockd.images.agent_keeper.fuse_mount import ENDS
from sockd.linux.erofs.mounting import find_way

IMAGES, ON_DEMAND = "container images", "images on demand"
EROFS_FIX = (
    "use a kernel with CONFIG_EROFS_FS and CONFIG_BLK_DEV_LOOP, or from 6.12 on with CONFIG_EROFS_FS_BACKED_BY_FILE and a state "
    "directory on a disk; in a container without /dev/loop-control: docker run --device /dev/loop-control ..."
)
FUSE_FIX = "modprobe fuse; in a container: docker run --device /dev/fuse ..."
RESEND_FIX = "use Linux 6.9 or newer"
READ = "images are read on demand"
WHOLE = "images are written to the disk as a whole"


def container_images(state_dir: Path = Path("/var/lib/sockd")) -> Check:
    """Whether an image can be mounted from a file in the state directory, and be the root of a sandbox."""
    path = state_dir.absolute()
    existing = next(each for each in (path, *path.parents) if each.exists())
    way, why = find_way(existing)
    if way is None:
        return Check(IMAGES, None, f"not for functions: {why}", EROFS_FIX)
    return Check(IMAGES, True, way.words)


def images_on_demand() -> Check:
    """Whether the agent of images has a connection of FUSE, which a new process can take over."""
    works = probed(ON_DEMAND, "fuse_mount", FUSE_FIX)
    if works.found.startswith(NO_RESEND):
        return Check(ON_DEMAND, None, f"{READ}, but {works.found}: {ENDS.ways[-1].cost}", RESEND_FIX)
    return works if works.ok else Check(ON_DEMAND, None, f"{WHOLE}: {works.found}", works.fix)
