"""Programs that own one part of sockd and measure it, without a worker."""
