"""The servers that functions of the suite read from and write to: S3, DynamoDB, and files over HTTP."""
