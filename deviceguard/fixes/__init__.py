"""Turns findings into edits of the user's files, as a unified diff. Nothing here writes into a user's file."""
