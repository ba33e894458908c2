"""HTTP/1.1 on sockets: the listener, connections, encoding of requests and answers."""
