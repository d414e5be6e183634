"""Settings of the files that tenants store, and of batches."""

from typing import Annotated

from msgspec import Meta

from gateway.settings.types import Branch, FilePath, HttpUrl, Positive, Seconds, Secret


class S3Settings(Branch, frozen=True, kw_only=True):
    """A bucket of Amazon S3, or of a server with the same protocol."""

    bucket: Annotated[
        str, Meta(description="Name of the bucket.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$")
    ]
    prefix: Annotated[
        str, Meta(description="Prefix of all object names, such as `radixgate/files`.", max_length=500)
    ] = ""
    region: Annotated[str, Meta(description="Region of the bucket.", max_length=100)] = "us-east-1"
    endpoint: Annotated[
        HttpUrl | None,
        Meta(description="Address of the S3 server, such as http://minio:9000; by default Amazon's."),
    ] = None
    access_key_id: Annotated[
        Secret | None,
        Meta(
            description="Access key; by default taken from the machine's AWS_ variables, web identity or instance "
            "metadata."
        ),
    ] = None
    secret_access_key: Annotated[Secret | None, Meta(description="Secret key for `access_key_id`.")] = None


class FileSettings(Branch, frozen=True, kw_only=True):
    """The files that tenants upload and that batches write. Without a database no files are kept."""

    directory: Annotated[
        FilePath,
        Meta(
            description="Directory for the contents of files, relative to `state_directory`; all gateways share it."
        ),
    ] = "files"
    s3: Annotated[
        S3Settings | None,
        Meta(
            description="Bucket for the contents of files instead of the directory; needs the extra "
            "`radixgate[s3]`."
        ),
    ] = None
    file_bytes_max: Annotated[Positive, Meta(description="Largest size of a file.")] = 512 * 1024**2
    tenant_bytes_max: Annotated[Positive, Meta(description="Largest total size of one tenant's files.")] = (
        10 * 1024**3
    )
    kept_seconds_max: Annotated[
        Seconds,
        Meta(description="Time after which a file is deleted; a client may set less with `expires_after`."),
    ] = 30 * 86400.0


class BatchSettings(Branch, frozen=True, kw_only=True):
    """Batches: files of requests that are processed in the background."""

    rows_max: Annotated[Positive, Meta(description="Largest number of requests in one batch.")] = 50_000
    running_rows_max: Annotated[
        Positive,
        Meta(description="Largest number of requests of all batches that one gateway runs at the same time."),
    ] = 32
    running_max: Annotated[
        Positive, Meta(description="Largest number of batches that one gateway processes at the same time.")
    ] = 8
    tenant_unfinished_max: Annotated[
        Positive, Meta(description="Largest number of unfinished batches of one tenant.")
    ] = 100
    kept_seconds: Annotated[
        Seconds,
        Meta(
            description="Time for which an ended batch can be queried; `files.kept_seconds_max` applies to its "
            "files."
        ),
    ] = 30 * 86400.0
