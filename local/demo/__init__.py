"""The tour of `make demo`. Each step does real work and prints the result in one line."""
