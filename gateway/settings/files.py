"""The branches of the settings tree for files that tenants keep here, and for batches."""

from typing import Annotated

from msgspec import Meta

from gateway.settings.types import Branch, FilePath, HttpUrl, Positive, Seconds, Secret


class S3Settings(Branch, frozen=True, kw_only=True):
    """A bucket of S3, or of what speaks its protocol."""

    bucket: Annotated[str, Meta(description="Its name.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$")]
    prefix: Annotated[
        str, Meta(description="What names of objects begin with, as `radixgate/files`.", max_length=500)
    ] = ""
    region: Annotated[str, Meta(description="Its region.", max_length=100)] = "us-east-1"
    endpoint: Annotated[
        HttpUrl | None, Meta(description="Where it is, unless that is Amazon: http://minio:9000.")
    ] = None
    access_key_id: Annotated[
        Secret | None,
        Meta(
            description="By default as the machine has it: AWS_ variables, web identity, instance metadata."
        ),
    ] = None
    secret_access_key: Annotated[Secret | None, Meta(description="Belongs to it.")] = None


class FileSettings(Branch, frozen=True, kw_only=True):
    """What tenants upload, and what batches write. Without a database nothing is kept."""

    directory: Annotated[
        FilePath,
        Meta(description="Where contents are kept, relative to state_directory; gateways share it."),
    ] = "files"
    s3: Annotated[
        S3Settings | None,
        Meta(description="A bucket in place of the directory, which needs `radixgate[s3]`."),
    ] = None
    file_bytes_max: Annotated[Positive, Meta(description="Largest file.")] = 512 * 1024**2
    tenant_bytes_max: Annotated[Positive, Meta(description="All files of one tenant together.")] = (
        10 * 1024**3
    )
    kept_seconds_max: Annotated[
        Seconds, Meta(description="How long a file is kept; `expires_after` may say less.")
    ] = 30 * 86400.0


class BatchSettings(Branch, frozen=True, kw_only=True):
    """Files of requests that are worked off in the background."""

    rows_max: Annotated[Positive, Meta(description="Requests of one batch.")] = 50_000
    running_rows_max: Annotated[
        Positive,
        Meta(description="Requests of batches that one gateway has under way, of all batches together."),
    ] = 32
    running_max: Annotated[Positive, Meta(description="Batches that one gateway works on at a time.")] = 8
    tenant_unfinished_max: Annotated[
        Positive, Meta(description="Batches of one tenant that have not ended.")
    ] = 100
    kept_seconds: Annotated[
        Seconds,
        Meta(description="How long an ended batch can be asked for; its files have a time of their own."),
    ] = 30 * 86400.0
