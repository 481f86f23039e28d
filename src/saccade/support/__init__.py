"""Helpers without dependencies: files, durations, wording, processes, aliases of moved modules."""
