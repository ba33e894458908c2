"""Commands for groups of workers and the proxy in front of them."""
