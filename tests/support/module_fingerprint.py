"""What packages' modules are, name by name: run in a sandbox, as the handler `f`. Constants by value, code by its bytes."""

import sys
import types
import zlib

PLAIN = (int, str, bytes, float, bool, type(None))


def f(event: object) -> dict[str, str]:
    found = {}
    for name, module in sorted(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith("/packages/"):
            for key, value in list(vars(module).items()):
                if not key.startswith("__"):
                    found[f"{name}.{key}"] = described(value)
    return found


def described(value: object) -> str:
    if isinstance(value, PLAIN):
        return repr(value)[:100]
    if isinstance(value, types.FunctionType):
        return f"{value.__qualname__} {zlib.crc32(value.__code__.co_code)}"
    if isinstance(value, type):
        return str([base.__qualname__ for base in value.__bases__])
    return type(value).__name__
