"""The dispatch mode: what is done before and after every op."""
