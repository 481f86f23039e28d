"""Settings that are known to work, one file each."""
