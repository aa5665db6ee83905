"""One module a group of subcommands: each adds its parsers and the functions that run them."""
