"""The management API: `sockd.sock`, and a port for clients with a key."""
