"""The search for the distribution that a Zygote cannot hold: one import after the other, each tried by a fork.

Owns the Zygote of the search while that runs. The distribution is refused for some time; an import of the standard library, until
it is forgiven."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from sockd.base.errors import NoCapacity, SandboxFailed, SockdError
from sockd.isolation.farm.control import ZygoteLate
from sockd.isolation.farm.zygote import Zygote
from sockd.starts.zygotes.learning.zygote_maker import Plan, ZygoteMaker
from sockd.starts.zygotes.learning.zygote_planner import ZygotePlanner
from sockd.starts.zygotes.top_levels.recordings import Recordings
from sockd.starts.zygotes.top_levels.refusals import Refusals
from sockd.starts.zygotes.top_levels.top_level import STANDARD_LIBRARY, key_of_import
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree

_log = logging.getLogger(__name__)


class CulpritSearch:
    """`search` for each plan whose Zygote failed."""

    def __init__(
        self,
        tree: ZygoteTree,
        maker: ZygoteMaker,
        planner: ZygotePlanner,
        refused: Refusals,
        recordings: Recordings,
        make: Callable[[ZygoteNode, Plan], Awaitable[None]],
    ) -> None:
        """Args: make: adds the planned Zygote to the tree, and raises as `ZygoteMaker.make`."""
        self._tree = tree
        self._maker = maker
        self._planner = planner
        self._refused = refused
        self._recordings = recordings
        self._make = make

    async def search(self, parent: ZygoteNode, plan: Plan) -> None:
        """Refuse the distribution of the first import that harms a Zygote, or make the Zygote after all."""
        zygote: Zygote | None = None
        culprit = ""
        try:
            zygote = await self._tree.lineages.spawn(parent)
            for culprit in self._suspects(plan):
                await self._maker.try_one(zygote, parent, plan, culprit)
        except NoCapacity as reason:
            _log.warning("no memory to find it: %s", reason)
        except (SockdError, OSError, TimeoutError) as reason:
            if culprit:
                self._refuse(parent, plan, culprit, said(reason), reason)
        else:
            await self._try_again(parent, plan)
        finally:
            if zygote is not None:
                zygote.close()

    async def _try_again(self, parent: ZygoteNode, plan: Plan) -> None:
        """Alone each is harmless. If they are together, too, it was our failure and not theirs."""
        try:
            await self._make(parent, plan)
        except NoCapacity as reason:
            _log.warning("no memory to try again: %s", reason)
        except (SandboxFailed, OSError, TimeoutError) as reason:
            for import_ in plan.node.added:
                self._refuse(parent, plan, import_, f"only together with others: {said(reason)}", reason)

    def _refuse(self, parent: ZygoteNode, plan: Plan, import_: str, cause: str, error: Exception) -> None:
        """Refuse the distribution of an import; of the standard library that import alone."""
        if parent not in self._tree.nodes:
            # It has ended, perhaps because its image was lost: that is no package's fault.
            _log.warning("a Zygote for %s was not made: %s", plan.words, cause)
            return
        key = key_of_import(import_)
        if key == STANDARD_LIBRARY:
            self._recordings.note_failed(import_, cause)
            _log.warning("%s is not imported ahead: %s", import_, cause)
            return
        if key not in plan.top.closure:
            return  # the place on sys.path of packages, of which each is judged by itself
        module = getattr(error, "module", "")
        refusal = self._refused.refuse(key, cause, module=module, node=plan.words, by_deadline=passed_deadline(error))
        seconds = refusal.retry_s - refusal.time_s
        _log.warning("%s is not imported ahead for %.0f s: %s (Zygote of %s)", key, seconds, refusal.reason, plan.words)

    def _suspects(self, plan: Plan) -> list[str]:
        """The new imports, the shortest first: dependencies before what depends on them."""
        costs = self._planner.costs()
        return sorted(plan.node.added, key=lambda each: (costs[each].seconds if each in costs else 0.0, each))


def passed_deadline(error: Exception) -> bool:
    """Whether time ran out, which a busy host may cause."""
    return isinstance(error, TimeoutError | ZygoteLate)


def said(error: Exception) -> str:
    """An error in words."""
    return str(error) or "a fork of it did not answer in time"
