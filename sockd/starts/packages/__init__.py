"""The install cache: what functions require, resolved, installed once, and kept for all of them."""
