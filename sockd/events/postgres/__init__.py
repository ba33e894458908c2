"""Events in PostgreSQL, and the group of workers that share them."""
