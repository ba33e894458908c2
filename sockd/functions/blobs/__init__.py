"""Files of deploys that all workers of a group need: a row in PostgreSQL for each, and its bytes in the chunk store."""
