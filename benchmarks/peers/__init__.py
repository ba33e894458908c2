"""What sockd is compared with: the kernel's floor, other runtimes and servers, and the lines and stores between them."""
