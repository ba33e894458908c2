"""AWS Signature Version 4: the canonical request, the signer and the verifier.

Imports nothing of ours. Used by the AWS APIs, the S3 server, and the initscript engine.
"""
