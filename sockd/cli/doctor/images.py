"""Whether this host has what functions from container images need: EROFS on files, and FUSE to read images on demand. A worker
runs without them.
"""

from __future__ import annotations

from pathlib import Path

from sockd.cli.doctor.checks import Check, probed
from sockd.cli.doctor.probes import NO_RESEND
from sockd.erofs.mounting import why_no_images
from sockd.kernel.ways import Ways

IMAGES, ON_DEMAND = "container images", "images on demand"
EROFS_FIX = (
    "use Linux 6.15 with CONFIG_EROFS_FS=y and CONFIG_EROFS_FS_BACKED_BY_FILE=y, and a state directory on a disk"
)
FUSE_FIX = "modprobe fuse; in a container: docker run --device /dev/fuse ..."
RESEND_FIX = "use Linux 6.9 or newer"
ROOTS_FIX = "use Linux 6.15 or newer; functions without images need no more than this kernel has"
WHOLE = "images are written to the disk as a whole"


def container_images(state_dir: Path = Path("/var/lib/sockd")) -> Check:
    """Whether an image can be mounted from a file in the state directory, and be the root of a sandbox."""
    if why := Ways.find().roots.reason:
        return Check(IMAGES, None, f"not for functions: roots are attached: {why}", ROOTS_FIX)
    path = state_dir.absolute()
    existing = next(each for each in (path, *path.parents) if each.exists())
    why = why_no_images(existing)
    return Check(
        IMAGES, None if why else True, f"not for functions: {why}" if why else "works", EROFS_FIX if why else ""
    )


def images_on_demand() -> Check:
    """Whether the agent of images has a connection of FUSE, which a new process can take over."""
    works = probed(ON_DEMAND, "fuse_mount", FUSE_FIX)
    fix = RESEND_FIX if works.found.startswith(NO_RESEND) else works.fix
    return works if works.ok else Check(ON_DEMAND, None, f"{WHOLE}: {works.found}", fix)
