"""The migrations in their order; a released one is never changed, since databases have been made with it."""
