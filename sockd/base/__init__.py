"""Plain data that every area may import: settings, errors, ids, texts."""
