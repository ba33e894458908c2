"""Inputs that are made here, in place of data that the suite downloads: pictures, models, and files of random bytes."""
