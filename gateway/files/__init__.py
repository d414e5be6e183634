"""Files that tenants upload: their contents in a directory or an S3 bucket, everything else in the database.

`tenant_files` is what the API does with files. `content_store` is the Protocol that keeps their contents;
`directory_store` and `s3_store` implement it.
"""
