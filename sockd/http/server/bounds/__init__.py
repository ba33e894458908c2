"""What a peer may take of the server: memory, time and places, shared fairly by source."""
