"""Web applications on the server's connections: requests in the form of ASGI."""
