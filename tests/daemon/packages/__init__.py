"""Packages of functions: real ones, builds, indexes."""
