"""Programs as functions: AWS's Runtime API, web servers, services, and the programs of images."""
