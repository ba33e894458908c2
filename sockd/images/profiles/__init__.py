"""Startup profiles: what the first start of an image has read, so that the next one need not fetch chunks for it."""
