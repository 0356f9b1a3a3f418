"""The Celery side: declarations, the pure driver, and the one place that executes, publishes and acknowledges.

What a Celery task calls knows nothing of Celery and is tested without it.
"""
