"""Every storage of a block and where it is; which of them an op reads, writes and makes."""
