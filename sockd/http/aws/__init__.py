"""The AWS Lambda REST API, for clients that people already have: boto3, the aws command line, any SDK.

The paths, shapes and error types are those of AWS's service model; what sockd does not do is refused with a typed error that
says so. It is a part of the public door (`sockd.http.front`), signed requests only but for Invoke on loopback: `access`
says who may call what, and why. IAM is not emulated.
"""
