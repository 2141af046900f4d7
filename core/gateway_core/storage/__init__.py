"""Object store: a directory or an S3 bucket, and the content of stored Files."""
