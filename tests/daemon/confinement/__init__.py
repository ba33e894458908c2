"""What a sandbox may reach and use."""
