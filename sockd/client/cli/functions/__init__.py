"""Commands for functions: make, deploy, publish, configure and remove them."""
