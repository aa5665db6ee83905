"""The tour of `make demo`: each step does real work and prints the result in one line."""
