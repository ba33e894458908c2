"""The handler of benches whose starts come from a snapshot, as `preloaded.py`: the init imports what SeBS's wrapper imports at
its first request. Runs in the sandbox.
"""

# The wrapper comes first, as it extends sys.path.
# isort: skip_file

from handler import handler as handler  # type: ignore[import-not-found]
from function import function as function  # type: ignore[import-not-found]
