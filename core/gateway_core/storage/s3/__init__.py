"""Object store in a bucket of an S3-compatible server, by boto3 on threads."""
