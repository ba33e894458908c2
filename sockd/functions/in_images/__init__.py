"""Functions in container images: their programs, and what their images' Pythons say and compile."""
