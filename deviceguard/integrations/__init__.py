"""Thin adapters for frameworks, each behind an extra."""
