"""One module for each resource of the API. Each takes the shared `Http` and returns the classes of `models`."""
