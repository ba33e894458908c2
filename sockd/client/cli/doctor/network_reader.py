"""What a network namespace holds, read by pyroute2: an implementation of netlink that has nothing in common with ours.

    python -m sockd.client.cli.doctor.network_reader

Prints one object of JSON about the namespace that it is started in. A process of its own: pyroute2 runs an event loop, which
cannot be done inside of the daemon's, and takes half a second to import. For `sockd doctor`'s probe and the tests.
"""

from __future__ import annotations

import json
import socket
from typing import Any


def read() -> dict[str, list[list[Any]]]:
    """Links (name, state), addresses (link's number, address), routes (destination, gateway), neighbours (address, hardware
    address, state). Raises: ImportError: no pyroute2."""
    from pyroute2 import IPRoute

    with IPRoute() as reader:
        return {
            "links": [[link.get("ifname"), link.get("operstate")] for link in reader.get_links()],
            "addresses": [[each["index"], each.get("address")] for each in reader.get_addr()],
            "routes": [
                [each.get("dst"), each.get("gateway")] for each in reader.get_routes(family=socket.AF_INET, table=254)
            ],
            "neighbours": [
                [each.get("dst"), each.get("lladdr"), each["state"]]
                for each in reader.get_neighbours(family=socket.AF_INET)
            ],
        }


if __name__ == "__main__":
    print(json.dumps(read()))
