"""Actions before and after every op."""
