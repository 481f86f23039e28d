"""The page of a comparison: its sentences, tables and files."""
