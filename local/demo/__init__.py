"""The tour that `make demo` gives: each step does something for real and says in one line what came of it."""
