"""The memory of storages: how one loses and regains it, and memory that is kept for the next."""
