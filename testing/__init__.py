"""What users import to test their flows and steps, without servers or with the embedded ones.

It stands beside the command line: nothing below imports it.
"""
