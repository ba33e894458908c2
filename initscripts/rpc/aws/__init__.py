"""AWS services over HTTP: where they are, who signs, and how S3, SQS and DynamoDB are asked."""
