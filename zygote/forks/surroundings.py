"""Where a Zygote's imports run: in a root like those of the sandboxes that it will fork, with a /tmp of its own.

The root is a detached tree, as a sandbox's is (`sockd.isolation.roots.assembly`): the base, an empty /tmp, no code. What imports
capture there (HOME, the working directory, the directory for temporary files) is right in each sandbox, and /dev/shm works. A
process that was chrooted may make no user namespace (user_namespaces(7)), so the Zygote leaves the tree before it forks. That
takes CAP_SYS_CHROOT in its own user namespace and no mount call; the packages could do it, too, and would find what they
have found since there are Zygotes: the farm's own root, in which nothing is the host's.
"""

from __future__ import annotations

import os
import resource

from sockd_zygote import _native

CODE = "/var/task"
"""sockd.isolation.roots.base.CODE: the working directory of every function."""


class Surroundings:
    """While it is entered, this process is in the tree. Owns its descriptors of the tree and of the farm's root."""

    def __init__(self, tree: int) -> None:
        """Args: tree: an fd of its root."""
        self._tree = tree
        self._farm = _native.move_up(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> Surroundings:
        enter(self._tree, CODE)
        return self

    def __exit__(self, *_: object) -> None:
        """Raises: OSError, when packages have closed the descriptors of their Zygote, which is of no use any more."""
        enter(self._farm, "/")
        os.close(self._farm)
        os.close(self._tree)


class OpenFiles:
    """While it is entered, the limit of open files is that of a function. The hard limit stays, because it could not be raised
    again; imports see it as the soft one (native/limits.c)."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> OpenFiles:
        self._soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(self._count, hard), hard))
        return self

    def __exit__(self, *_: object) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # an import may have lowered it
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(self._soft, hard), hard))


def enter(root: int, directory: str) -> None:
    os.fchdir(root)
    os.chroot(".")
    os.chdir(directory)
