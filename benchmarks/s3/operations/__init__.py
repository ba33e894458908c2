"""S3's operations: what each request does to buckets and objects, and which one a request asks for."""
