"""One small module a resource; each takes the shared `Http` and returns the shapes of `models`."""
