"""Which cells, and which run, the words of a command line name."""
