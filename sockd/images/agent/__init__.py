"""The agent: a confined process that serves images as files over FUSE, from chunks that it fetches when they are read."""
