"""Runs the whole system on one machine: starts an AWS emulator, deploys template.yaml to it, plays a demo."""
