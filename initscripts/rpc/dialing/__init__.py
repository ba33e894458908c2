"""From an address to a connected socket: its parts, the policy that judges each IP address, and the peer's certificate."""
