"""Services: programs that keep running and serve a port, with a lifecycle of their own instead of a request's."""
