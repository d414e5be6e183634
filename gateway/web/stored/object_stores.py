"""The stores of a tenant's objects (responses, conversations, files, batches), with their limits."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.database.batch_store import BatchStore
from gateway.database.conversation_store import ConversationStore
from gateway.database.response_store import ResponseStore
from gateway.files.tenant_files import TenantFiles
from gateway.web.stored.background_responses import BackgroundResponses


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStores:
    """The stores of a tenant's objects. A store is None where the gateway has no database."""

    responses: ResponseStore | None = None
    conversations: ConversationStore | None = None
    background_responses: BackgroundResponses | None = None
    tenant_files: TenantFiles | None = None
    batches: BatchStore | None = None
    unfinished_max: int = 0
    """The most unfinished batches of one tenant."""
    rows_max: int = 0
    """The most requests of one batch."""
    row_bytes_max: int = 0
    """The most bytes of one request of a batch."""
    wake: Callable[[], None] = lambda: None
    """Called when there is a batch to run or to cancel."""
