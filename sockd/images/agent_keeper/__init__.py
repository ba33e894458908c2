"""The agent's side in the daemon: its process kept running, the FUSE connection, and the images that it serves."""
