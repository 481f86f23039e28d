"""The views of `explain`; every file in this folder registers its own."""
