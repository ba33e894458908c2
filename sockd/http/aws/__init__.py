"""AWS's Lambda REST API, for boto3, the aws command and other SDKs.

Paths, shapes and error types are those of AWS's service model; unsupported features are refused with a typed error. The API is
part of the public port (`sockd.http.front`) and requires signatures, except for Invoke on loopback (`access`). IAM is not
emulated.
"""
