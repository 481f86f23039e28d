"""The page of a comparison: text, tables and files."""
