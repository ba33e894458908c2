"""HTTP/1.1 as the RPC stacks speak it: a client of one origin, its connections, and the replies that they receive."""
