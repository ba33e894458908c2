"""Deploys: from a directory or an image to a version that answers, and the way back."""
