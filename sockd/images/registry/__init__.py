"""Container images as OCI and Docker specify them: references, registry client, layouts, archives, and layers as files."""
