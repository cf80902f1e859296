"""What is done before and after every op."""
