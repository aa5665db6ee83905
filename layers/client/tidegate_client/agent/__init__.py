"""The agent, which runs on each host: it downloads files, puts them in place and reports the results."""
