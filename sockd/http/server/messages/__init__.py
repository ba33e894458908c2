"""Requests and answers as bytes: heads, bodies, header fields, refusals. No socket is read or written here."""
