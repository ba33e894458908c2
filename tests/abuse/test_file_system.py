"""Group A: from a sandbox, or a Zygote, to a file that is not one's own."""

from __future__ import annotations

from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker


@case("A1", "chroot again, then fchdir up thirty times", expect="EPERM, and only the sandbox's own root")
def test_a_second_chroot_leads_nowhere(house: PrivateWorker, happened: Happened) -> None:
    house.deploy("hello", "def f(event): return event")
    happened(str(house.invoke("hello", 3)))
    assert house.call("hello", 3) == 3
