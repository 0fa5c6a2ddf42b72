"""Figures of finished runs: summaries, a table, JSON and a picture."""
