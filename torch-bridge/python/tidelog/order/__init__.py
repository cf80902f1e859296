"""Order of work other than the program's: updates at other times, micro-batches layer by layer."""
