"""The whole system on one machine: starts the emulator, deploys template.yaml, runs a demo."""
