"""What finds runs that nobody works on any more, and decides what becomes of them.

It writes verdicts and outbox rows; it never touches the broker and never runs user code.
"""
