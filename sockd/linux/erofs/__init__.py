"""EROFS images: the layout of an image's files, its writer and its reader. Owns nothing.

EROFS (Linux: Documentation/filesystems/erofs.rst) is a read-only file system that the kernel can mount from a plain file. The
writer places files so that images that have files in common have 512 KiB chunks in common (`layout`)."""
