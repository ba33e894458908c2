"""AWS's APIs in front of a real worker."""
