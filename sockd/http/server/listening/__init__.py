"""How connections are accepted: listening sockets, the one that is let in next, and the order in which all are read."""
