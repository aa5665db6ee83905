"""The subcommands, one module for each group: `register` adds its parsers and the functions that run them."""
