"""The tables of conversations.

    conversations        one row for each conversation, with its metadata
    conversation_items   one row for each of its items, numbered in their order

A conversation expires some time after its last change. Times are milliseconds since 1970.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text

from gateway.database.tables import metadata

ITEM_ID_LENGTH_MAX = 128

conversations = Table(
    "conversations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False, index=True),
    Column("bytes", BigInteger, nullable=False),
    Column("item_count", Integer, nullable=False),
    Column("metadata", Text, nullable=False),
    Index("ix_conversations_tenant_changed_ms", "tenant", "changed_ms"),
)
"""Conversations. `item_count`: how many items it has ever had, which is the number of the next one."""

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("conversation", String(64), primary_key=True),
    Column("id", String(ITEM_ID_LENGTH_MAX), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("item", Text, nullable=False),
    Index("ix_conversation_items_conversation_number", "conversation", "number"),
)
"""Items of conversations, each a JSON object."""
