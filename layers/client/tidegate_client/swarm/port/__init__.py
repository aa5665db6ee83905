"""The port that peers call."""
