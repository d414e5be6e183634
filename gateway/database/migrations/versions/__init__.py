"""The steps. One that has been released is never changed: what it made is in databases."""
