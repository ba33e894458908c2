"""Plain data that every room may import: settings, errors, ids, texts."""
