"""`python -m sockd`: the command line."""

from __future__ import annotations

from sockd.client.cli.main import main

if __name__ == "__main__":
    main()
