"""The parts of a worker that deploys use, made once.

Owns nothing: each part says what it owns.
"""

from __future__ import annotations

from dataclasses import dataclass

from sockd.base.config import Config
from sockd.functions.code.code_in_use import CodeInUse
from sockd.functions.code.code_store import CodeStore
from sockd.functions.deploys.code_contents import CodeContents
from sockd.functions.deploys.garbage import Garbage
from sockd.functions.deploys.image_contents import ImageContents
from sockd.functions.deploys.initscript_deploys import InitscriptDeploys
from sockd.functions.deploys.network_rules import NetworkRules
from sockd.functions.deploys.package_users import DeployedPackages
from sockd.functions.deploys.parsing import Parsing
from sockd.functions.deploys.reserved_memory import ReservedMemory
from sockd.functions.deploys.switching import Switching
from sockd.functions.modules.function_modules import FunctionModules
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.function import Caches
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.functions.serving.shared_files import SharedFiles
from sockd.functions.serving.version_files import VersionFiles
from sockd.isolation.sandbox.granted_ports import GrantedPorts
from sockd.starts.packages.install_cache import InstallCache


@dataclass(frozen=True, slots=True)
class DeployParts:
    """In the order in which a deploy meets them."""

    code: CodeStore
    in_use: CodeInUse
    parsing: Parsing
    code_contents: CodeContents
    image_contents: ImageContents
    packages: DeployedPackages
    scripts: InitscriptDeploys
    reserved: ReservedMemory
    rules: NetworkRules
    switching: Switching
    garbage: Garbage
    registry: Registry
    live: LiveFunctions
    files: VersionFiles
    caches: Caches
    shared: SharedFiles | None

    @classmethod
    def of(
        cls,
        config: Config,
        registry: Registry,
        code: CodeStore,
        installed: InstallCache,
        caches: Caches,
        files: VersionFiles,
        live: LiveFunctions,
        modules: FunctionModules,
        shared: SharedFiles | None = None,
    ) -> DeployParts:
        """Make the parts of one worker. Args: shared: None: it is in no group."""
        in_use, packages = CodeInUse(code, registry.digests), DeployedPackages()
        scripts = InitscriptDeploys(caches.initscripts, config.initscripts, shared)
        return cls(
            code=code,
            in_use=in_use,
            parsing=Parsing(config.function, registry),
            code_contents=CodeContents(registry, code, installed, packages, modules, config.packages.default),
            image_contents=ImageContents(caches.images, caches.image_pythons),
            packages=packages,
            scripts=scripts,
            reserved=ReservedMemory(live, caches.budget),
            rules=NetworkRules(live.allowances, caches.networks, GrantedPorts(caches.ports), config.network.publish_on),
            switching=Switching(registry, live, files),
            garbage=Garbage(registry, code, in_use, scripts, caches.images),
            registry=registry,
            live=live,
            files=files,
            caches=caches,
            shared=shared,
        )
