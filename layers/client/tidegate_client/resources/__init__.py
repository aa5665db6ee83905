"""The resources of the API, one module each. Their methods call the API and return the classes of `models`."""
