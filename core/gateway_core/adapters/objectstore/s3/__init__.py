"""The object store: bytes in a bucket of an S3-compatible store, by boto3 on threads.

`store` is the adapter; the others are its blocking work, done on its threads.
"""
