"""`python -m sockd.images.agent CONTROL_FD`: the agent's process."""

from __future__ import annotations

import sys

from sockd.images.agent.agent_process import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
