"""The command line: one file a group of verbs.

Everything that reads prints one JSON document with `--json`; exit codes are 0 done, 1 failed, 2 wrong usage.
"""
