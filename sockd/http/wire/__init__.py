"""HTTP/1.1 on sockets: the listener, connections, requests and answers as bytes."""
